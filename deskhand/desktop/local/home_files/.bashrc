PS1='\w\$ '
HISTFILE=
