#!/bin/bash
# run.sh        check every model: the rules as amended hold, each amendment is needed   (two minutes on two cores)
# run.sh -q     only the rules as amended
# run.sh -t     also print the shortest counterexample of every rule as first written
# run.sh MODEL FLAGS...   check one variant, print its verdict and its trace (switches: head of each file)
# run.sh -l     list what is checked and ends within seconds, one "EXPECT MODEL FLAGS..." a line; -L: list everything
# run.sh -e EXPECT MODEL FLAGS...   check one line of that list
#
# pass: no invariant can be broken.  fail: one can (the switched-off amendment is needed).  noloop: no
# cycle of states, so every run ends, and the check at its end (I6) is a liveness proof.
# Needs spin (6.5) and a C compiler.  Exit status 0: every verdict is the expected one.
cd "$(dirname "$0")" || exit 2
here=$PWD

one() {					# EXPECT MODEL FLAGS... ; EXPECT: pass, fail, noloop
	expect=$1 model=$2; shift 2
	tmp=$(mktemp -d) || exit 2
	cd "$tmp" || exit 2
	cp "$here/$model.pml" m.pml
	case $expect in
	pass)   cc="-O1 -DSAFETY";      pan="-m100000";;
	fail|any) cc="-O0 -DSAFETY -DBFS"; pan="-m100000";;	# breadth first: the shortest trace
	noloop) cc="-O1 -DNP -DNOFAIR"; pan="-l -m100000";;
	esac
	t0=$(date +%s%N)
	if ! spin -a "$@" m.pml >log 2>&1 || ! gcc -w $cc -DMEMLIM=6000 -o pan pan.c >>log 2>&1; then
		verdict="BROKEN"; cat log
	elif ./pan $pan >log 2>&1; grep -q 'errors: 0' log; then
		verdict=pass
		grep -q 'max search depth too small\|out of memory\|Search not completed' log && verdict=BROKEN
	elif grep -q 'assertion violated\|non-progress cycle\|invalid end state' log; then
		verdict=fail
	else
		verdict=BROKEN; cat log
	fi
	states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' log)
	want=$expect; [ "$expect" = noloop ] && want=pass
	mark=ok; [ $verdict = "$want" ] || mark="UNEXPECTED"
	[ "$expect" = any ] && mark=-
	ms=$(( ($(date +%s%N) - t0) / 1000000 ))
	printf '%-10s %-7s %-6s %9s states %6d ms  %s %s\n' "$mark" "$model" \
		"$([ "$expect" = noloop ] && echo "noloop" || echo $verdict)" "$states" $ms "$model.pml" "$*" > line
	if [ -n "$TRACE" ] && [ -f m.pml.trail ]; then
		{
			grep -m1 -o 'assertion violated.*' log | cut -c1-160
			spin -t "$@" m.pml 2>/dev/null | grep -E '^ {4,}' |
				grep -vE 'proc +[0-9]|processes created|\[|^ *[a-zA-Z0-9_]+(\[[0-9]+\])? = ' | sed 's/^ *//' | nl -w4 -s'  '
		} | sed 's/^/        /' >> line
	fi
	cat line
	cd / && rm -rf "$tmp"
	[ "$mark" = ok ]
}
export -f one
export here TRACE

case $1 in
-q) only=1;;
-t) TRACE=1;;
-l) list=short;;
-L) list=all;;
-e) shift; one "$@"; exit;;
"") ;;
*)  model=${1%.pml}; shift; TRACE=1; one any "$model" "$@"; exit 0;;
esac

amended='
pass   commit -DSIDE=1 -DLOSSES=1
pass   commit -DSIDE=0 -DLOSSES=0 -DLATE=1
noloop commit -DSIDE=1 -DLOSSES=0
pass   reread
pass   reread -DHOLD=1
noloop reread
pass   claim
pass   claim -DSAME=1
noloop claim
pass   head
pass   head -DDECLARE=0 -DDAMAGE=0 -DSTRAY=0 -DLOSS=0
pass   join
noloop join -DROT=1
pass   gc -DPRUNERS=1 -DKILLS=2
noloop gc -DWRITERS=1
'
amended_long='
pass   commit -DSIDE=2 -DLOSSES=0
pass   commit -DSIDE=0 -DLOSSES=2 -DLATE=1
pass   gc
pass   gc -DWRITERS=1 -DKILLS=1
'
old="-DF_TOMB=0 -DF_RECHECK=0 -DF_BORROW=0 -DF_ORDER=0 -DF_LAST=0 -DF_PIN=0"	# R11 as first written
original="
fail commit -DF_KEY=0 -DF_REV=0 -DSIDE=0 -DLOSSES=0
fail commit -DF_FRESH=0 -DSIDE=0 -DLOSSES=0
fail commit -DF_KEY=0 -DSIDE=0 -DLATE=1 -DLOSSES=0
fail commit -DF_REV=0 -DSIDE=0 -DLOSSES=0
fail commit -DF_REV=0 -DSIDE=0 -DLOSSES=0 -DRESAVE=0
fail commit -DF_REV=1 -DSIDE=0 -DLOSSES=0 -DRESAVE=0
fail commit -DF_BIND=0 -DLOSSES=0
fail commit -DF_ANY=0 -DLOSSES=0
fail commit -DF_RESTAMP=0 -DLOSSES=0
fail commit -DA_BARRIER=0 -DSIDE=0 -DLOSSES=0
fail commit -DA_SKEW=0 -DSIDE=0 -DLOSSES=0
fail commit -DA_HIST=0 -DSIDE=0 -DLOSSES=0
fail reread -DF_PASS=0
fail reread -DF_LIST=0
fail reread -DF_FRESH=0
fail reread -DF_FRESH=2
fail reread -DHOLD=1 -DF_PATH=0
fail claim -DF_CLAIM=0 -DSAME=1
fail claim -DF_CLAIM=1
fail claim -DF_EARLY=0
fail head -DF_BIRTH=0 -DLOSS=0 -DSTRAY=0 -DDAMAGE=0
fail head -DF_RANK=0 -DSTRAY=0 -DDAMAGE=0
fail head -DF_RANK=0 -DLOSS=0 -DDAMAGE=0
fail head -DF_FOUND=0 -DLOSS=0 -DSTRAY=0 -DDAMAGE=0
fail head -DF_LINEAGE=0 -DLOSS=0 -DSTRAY=0
fail head -DF_TIE=0 -DDECLARE=0 -DDAMAGE=0 -DLOSS=0 -DSTRAY=0
fail join -DF_READ=0 -DF_NEXT=0 -DF_START=0 -DROT=0 -DRESTARTS=0
fail join -DF_NEXT=0 -DF_START=0 -DROT=1 -DRESTARTS=1
fail join -DF_START=0 -DROT=1 -DRESTARTS=0
fail gc $old -DWRITERS=0 -DRESTORE=0 -DPRUNERS=1
fail gc $old -DLATE=0 -DRESTORE=0 -DPRUNERS=1 -DWRITERS=1
fail gc -DF_NAMED=0 -DLATE=0 -DRESTORE=0 -DPRUNERS=1 -DWRITERS=1
fail gc -DF_RECHECK=0 -DWRITERS=0 -DPRUNERS=1
fail gc -DF_PIN=0 -DWRITERS=0 -DPRUNERS=1
fail gc -DF_BORROW=0 -DWRITERS=1
fail gc -DF_BORROW=2 -DWRITERS=1
fail gc -DF_TOMB=0 -DF_RECHECK=0 -DF_LAST=0 -DF_BORROW=2 -DLEAK=0 -DWRITERS=1 -DLATE=0 -DRESTORE=0 -DPRUNERS=1
fail gc -DF_TOMB=0 -DF_RECHECK=0 -DF_LAST=0 -DF_BORROW=2 -DLEAK=0 -DWRITERS=0 -DRESTORE=0 -DPRUNERS=1
fail gc -DF_TOMB=0 -DF_RECHECK=0 -DF_LAST=0 -DF_BORROW=2 -DLEAK=0 -DWRITERS=0 -DLATE=0 -DPRUNERS=1
fail gc -DF_ORDER=0 -DLATE=0 -DRESTORE=0
fail gc -DF_LAST=0 -DWRITERS=0 -DRESTORE=0 -DLATE=0 -DPRUNERS=1 -DKILLS=1
"
case $list in
short) printf '%s\n%s\n' "$amended" "$original" | grep .; exit;;
all) printf '%s\n%s\n%s\n' "$amended" "$amended_long" "$original" | grep .; exit;;
esac
[ -n "$only" ] && original=
printf '%s\n%s\n%s\n' "$amended" "$amended_long" "$original" | grep . | xargs -P "$(nproc)" -I{} bash -c 'one {}' || { echo "some verdicts are not the expected ones"; exit 1; }
