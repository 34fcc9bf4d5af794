"""Files against the judge: each is the result that an episode leaves, and none may be paid, voided, or cost much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.attacks.parts import Attack

SECRET_LINE = "the line that the task wants"
"""Also in files of the host that links lead to."""


def hostile(name: str, check: Mapping[str, Any], program: str) -> Attack:
    return Attack("judge", name, "scored 0, for at most 5 s and 200 MiB of the trainer", program, check=check)


ROWS = {"path": "a", "query": "select name, price from items order by 1", "rows": [["pear", 1]]}
LINE = {"text": {"path": "a", "lines": [SECRET_LINE]}}
COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n)"


def database(name: str, *statements: str) -> Attack:
    text = "\n".join(f'base.execute("""{each}""")' for each in statements)
    program = f'base = sqlite3.connect("a", isolation_level=None)\n{text}\nbase.close()\ntried()'
    return hostile(f"database: {name}", {"sqlite": ROWS}, program)


SHEET = """
def sheet(cells="", bomb=0):
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml."
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" '
        f'ContentType="{kinds}sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" '
        f'ContentType="{kinds}worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}relationships"><Relationship Id="r1" '
        f'Type="{relations}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}relationships"><Relationship Id="r1" '
        f'Type="{relations}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets><sheet name="A" sheetId="1" '
        f'r:id="r1"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f'{ENTITIES}<worksheet xmlns="{main}"><sheetData>{cells}</sheetData></worksheet>',
    }
    with zipfile.ZipFile("a", "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in parts.items():
            file.writestr(name, text)
        if bomb:
            with file.open("xl/bomb.xml", "w", force_zip64=True) as entry:
                for _ in range(bomb):
                    entry.write(bytes(1 << 20))
ENTITIES = ""
"""


def sheet(name: str, program: str) -> Attack:
    check = {"sheet": {"path": "a", "rows": [["pear", 1]]}}
    return hostile(f"sheet: {name}", check, f"{SHEET}\n{program}\ntried()")


PNG = """
def picture(width, height, depth=8, data=b""):
    def part(kind, data):
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
    head = part(b"IHDR", struct.pack("!IIBBBBB", width, height, depth, 2, 0, 0, 0))
    with open("a", "wb") as file:
        file.write(b"\\x89PNG\\r\\n\\x1a\\n" + head + part(b"IDAT", zlib.compress(data, 9)) + part(b"IEND", b""))
"""


def picture(name: str, program: str) -> Attack:
    return hostile(f"picture: {name}", {"image": {"path": "a", "size": [1, 1]}}, f"{PNG}\n{program}\ntried()")


def text(name: str, program: str, check: Mapping[str, Any] = LINE) -> Attack:
    return hostile(f"text: {name}", check, f"{program}\ntried()")


TABLE = (
    database("a view of 450 MB", "create view items as select hex(zeroblob(450000000)) name, 1 price"),
    database("an endless view", f"create view items as {COUNT} select i as name, 1 as price from n"),
    database(
        "a view of many large values",
        f"create view items as select randomblob(15000000) as name, 1 as price from ({COUNT} select i from n limit 90)",
    ),
    database(
        "a view that gives the wanted row, and then computes without end",
        f"create view items as select 'pear' name, 1 price union all {COUNT.replace('with', 'select * from (with')}"
        " select i, i from n where i < 0)",
    ),
    database(
        "a trigger and a table of another type",
        "create table items (name, price)",
        "insert into items values (x'ff00', 1e308 * 10)",
        "create trigger t after insert on items begin delete from items; end",
    ),
    hostile(
        "database: zeroed pages",
        {"sqlite": ROWS},
        """
        base = sqlite3.connect("a")
        base.execute("create table items (name, price)")
        base.execute("insert into items values ('pear', 1)")
        base.commit()
        base.close()
        with open("a", "r+b") as file:
            file.seek(4096)
            file.write(bytes(4096))
        tried()
        """,
    ),
    hostile(
        "database: a journal that is a pipe, and a link to the host's file",
        {"sqlite": {**ROWS, "path": "b"}},
        """
        os.mkfifo("b-wal"); os.mkfifo("b-journal"); os.symlink(facts["secret"], "b")
        tried()
        """,
    ),
    sheet(
        "two cells far apart",
        'sheet(\'<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>\')',
    ),
    sheet(
        "two million cells",
        'sheet("".join(f\'<row r="{n}">\' + "<c><v>1</v></c>" * 100 + "</row>" for n in range(1, 20001)))',
    ),
    sheet("unpacks to 300 MiB", "sheet(bomb=300)"),
    sheet(
        "entities in entities",
        """
ENTITIES = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "haha">' + "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12)) + "]>"
sheet('<row r="1"><c r="A1" t="str"><v>&a11;</v></c></row>')
""",
    ),
    sheet(
        "an entity that names a file of the host",
        """
ENTITIES = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file://{facts["secret"]}">]>'
sheet('<row r="1"><c r="A1" t="str"><v>&a;</v></c></row>')
""",
    ),
    sheet("XML of 200,000 levels", "sheet('<row>' * 200_000)"),
    hostile(
        "sheet: not an archive", {"sheet": {"path": "a", "rows": [["pear"]]}}, 'open("a", "wb").write(b"PK"); tried()'
    ),
    picture("8192x8192, 16 bits", "picture(8192, 8192, 16)"),
    picture("a million by a million", "picture(1 << 20, 1 << 20)"),
    picture("zero by zero", "picture(0, 0)"),
    picture("its pixels unpack to 400 MB", "picture(4000, 4000, 8, bytes(400_000_000))"),
    hostile(
        "JSON: 100,000 levels",
        {"json": {"path": "a", "equals": 1}},
        'open("a", "w").write("[" * 100_000 + "]" * 100_000); tried()',
    ),
    hostile(
        "JSON: two million lists",
        {"json": {"path": "a", "equals": 1}},
        'open("a", "w").write("[" + "[]," * 2_000_000 + "1]"); tried()',
    ),
    hostile(
        "JSON: a number of a million digits",
        {"json": {"path": "a", "equals": 1.5, "within": 0.1}},
        'open("a", "w").write("1" * 1_000_000); tried()',
    ),
    hostile(
        "CSV: four million cells",
        {"csv": {"path": "a", "rows": [["pear"]]}},
        'open("a", "w").write("a," * 4_000_000); tried()',
    ),
    text(
        "a pattern that does not end",
        'open("a", "w").write("a" * 60 + "!")',
        {"text": {"path": "a", "matches": "(a+)+"}},
    ),
    text(
        "a pattern that does not end, while every processor is busy",
        """
for _ in range(56):
    if os.fork() == 0:
        os.setsid()  # the scheduler shares time between sessions
        while True:
            pass
open("a", "w").write("b" * 60 + "!")
""".strip("\n"),
        {"text": {"path": "a", "matches": "(b+)+"}},
    ),
    text(
        "a pattern that does not end, while every processor becomes busy",
        """
if os.fork() == 0:
    os.setsid()
    time.sleep(1)  # until the judge reads
    for _ in range(56):
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
    os._exit(0)
open("a", "w").write("c" * 60 + "!")
""".strip("\n"),
        {"text": {"path": "a", "matches": "(c+)+"}},
    ),
    text("a pipe", 'os.mkfifo("a")'),
    text("a socket", 'socket.socket(socket.AF_UNIX).bind("a")'),
    text("a link to the host's file", 'os.symlink(facts["paid"], "a")'),
    text(
        "a link to a link to the host's folder",
        'os.symlink(os.path.dirname(facts["paid"]), "b"); os.symlink("b/paid", "a")',
    ),
    text("a link to itself", 'os.symlink("a", "a")'),
    text(
        "a link that changes its target all the time",
        """
if os.fork() == 0:
    os.setsid()
    open("b", "w").write("wrong")
    while True:
        for target in ("b", facts["paid"]):
            os.symlink(target, "c"); os.rename("c", "a")
time.sleep(0.1)
""".strip("\n"),
    ),
    text("a link to a device that never ends", 'os.symlink("/dev/zero", "a")'),
    text("sparse, 60 MiB", 'open("a", "wb").truncate(7 << 20)'),
    text("bytes that are no text", 'open("a", "wb").write(bytes(range(256)) * 1000)'),
    text(
        "names that are no text, and as long as they can be",
        r"""
for name in (b"\xff\xfe", b"a" * 255, b"new\nline", b"\x1b]0;x\x07", "a\u202e".encode()):
    open(os.path.join(os.fsencode(here), name), "wb").close()
os.mkdir("a")
for number in range(3000):
    open(os.fsencode(f"a/{number}") + b"\xff", "wb").close()
""".strip("\n"),
    ),
    text(
        "folders in folders, 2,000 deep",
        """
for number in range(2000):
    os.mkdir("a"); os.chdir("a")
""".strip("\n"),
    ),
    text(
        "a file without rights",
        'open("a", "w").write("the line that the task wants"); os.chmod("a", 0); os.chmod(".", 0)',
    ),
)
