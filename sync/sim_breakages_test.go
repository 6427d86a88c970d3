//go:build !race

package syncer

// The rules that are broken on purpose. Some take several places.
var simBreakages = []simBreakage{
	{"F_PASS", false, 12, "sync/publish.go", "if err := l.hold.Check(); err != nil {\n\t\tvar ch", "if broken(\"F_PASS\") {\n\t\treturn true, nil\n\t}\n\tif err := l.hold.Check(); err != nil {\n\t\tvar ch"},
	{"F_FRESH", false, 4, "sync/settle.go", "if len(l.verdict.Voided) > 0 && !proven {", "if len(l.verdict.Voided) > 0 && !proven && !broken(\"F_FRESH\") {"},
	{"F_KEY", false, 6, "commit/digest.go", "func NewToken() string { return randomToken(10) }",
		"func NewToken() string {\n\tif broken(\"F_KEY\") {\n\t\treturn \"aaaaaaaaaa\"\n\t}\n\treturn randomToken(10)\n}"},
	{"F_PASS", false, 12, "sync/upload/upload.go", "!now.Same(f.Ident) {", "!now.Same(f.Ident) && !broken(\"F_PASS\") {"}, // each file as it is read, too
	{"R1", false, 0, "sync/upload/upload.go", "_, err := u.bucket.Put(ctx, f.Object, src, &blob.PutOptions{CRC32C: &crc})\n",
		"_, err := u.bucket.Put(ctx, f.Object, src, &blob.PutOptions{CRC32C: &crc})\n\t\tif broken(\"R1\") && blob.Ambiguous(err) {\n\t\t\treturn nil\n\t\t}\n"},
	{"F_RANK", false, 0, "sync/attempt.go", "commit.Attempt{Base: base, Rank: rank,", "commit.Attempt{Declared: broken(\"F_RANK\"), Base: base, Rank: rank,"},
	{"F_FOUND", false, 3, "sync/scan.go", "ok && (print == anyPrint || l.is(print)) {", "ok && !broken(\"F_FOUND\") && (print == anyPrint || l.is(print)) {"},
	{"F_LINEAGE", false, 36, "commit/head.go", "if base == nil || c.Step > base.Step {", "if (base == nil || c.Step > base.Step) && !(broken(\"F_LINEAGE\") && x.v.Marks[c.ID][Damaged]) {"},
	{"F_READ", false, 24, "blob/create.go", "case rerr == nil && bytes.Equal(there, body):", "case rerr == nil && (broken(\"F_READ\") || bytes.Equal(there, body)):"},
	{"F_TIE", false, 44, "commit/head.go", "cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt)", "cmp.Compare(a.Step, b.Step), flipped(\"F_TIE\")*cmp.Compare(a.Attempt, b.Attempt)"},
	{"F_NAMED", false, 3, "sync/prune/sweep.go", "live, somewhere := named[r.hash(d.Name)]", "live, somewhere := named[r.hash(d.Name)]\n\t\tlive, somewhere = live && !broken(\"F_NAMED\"), somewhere && !broken(\"F_NAMED\")"},
	{"R11_HEAD", false, 3, "sync/prune/prune.go", "if !d.Keep {", "if !d.Keep || broken(\"R11_HEAD\") {"},
	{"R12_JOURNAL", false, 6, "sync/journal.go", "return r, ok && r.Ident != nil && *r.Ident == id\n}\n\n// upload is", "return r, ok && (broken(\"R12_JOURNAL\") || r.Ident != nil && *r.Ident == id)\n}\n\n// upload is"},
	{"R10_VOIDED", false, 26, "sync/recover.go", "case len(v.Voided) > 0 && !e.cfg.TrustOrder:", "case len(v.Voided) > 0 && !e.cfg.TrustOrder && !broken(\"R10_VOIDED\"):"},
	{"R7_RESCUE", false, 7, "sync/recover.go", "if !o.ReadOnly {\n\t\tif err := e.rescue(ctx, o); err != nil {", "if !o.ReadOnly && !broken(\"R7_RESCUE\") {\n\t\tif err := e.rescue(ctx, o); err != nil {"},
	{"R10_ZERO", false, 13, "sync/recover.go", "if errors.Is(err, restore.ErrNothingCommitted) && o.IfExists {", "if (errors.Is(err, restore.ErrNothingCommitted) || broken(\"R10_ZERO\") && errors.Is(err, restore.ErrCannotTell)) && o.IfExists {"},
	{"F_LIST", false, 17, "sync/scan.go", "	if err == nil && l.jitter.loose {", `	if broken("F_LIST") && err == nil && l.tree != nil {
		if _, listed := l.tree.Lookup("DONE"); listed { // the names are those of the first listing
			t = t.Without(func(rel string) bool { _, was := l.tree.Lookup(rel); return !was })
		}
	}
	if err == nil && l.jitter.loose {`},
	{"F_BIRTH", false, 0, "sync/recover.go", "	a, err := e.store.DrawAttempt(ctx, func(v *commit.View, n int) (commit.Attempt, error) {\n\t\tif *last", `	if broken("F_BIRTH") {
		return &commit.Attempt{Declared: true, Base: base, Fresh: fresh, Nodes: 1}, nil
	}
	a, err := e.store.DrawAttempt(ctx, func(v *commit.View, n int) (commit.Attempt, error) {
		if *last`},
	{"F_BIRTH", false, 0, "sync/state.go", "err == nil && st.Attempt > 0 &&", `err == nil && (st.Attempt > 0 || broken("F_BIRTH")) &&`},
	{"F_BIRTH", false, 0, "sync/attempt.go", "	if err := e.leaveUnknown(ctx, v); err != nil {\n", `	if broken("F_BIRTH") && e.st != nil && e.st.Attempt == 0 {
		st := e.st
		a, err := e.store.DrawAttempt(ctx, func(*commit.View, int) (commit.Attempt, error) {
			return commit.Attempt{Declared: true, Base: st.Base, Nodes: 1, Created: commit.At(e.cfg.now())}, nil
		})
		if err == nil {
			err = e.adopt(a, 0, st.Born)
		}
		if err == nil {
			v, err = e.store.View(ctx)
		}
		if err != nil {
			return storeError(err)
		}
	}
	if err := e.leaveUnknown(ctx, v); err != nil {
`},
	{"F_BIRTH", false, 0, "sync/rivals.go", "	if st == nil || ctx.Err() != nil || now", `	if st == nil || st.Attempt == 0 && broken("F_BIRTH") || ctx.Err() != nil || now`},
	{"R11_BORROWED", false, 95, "sync/prune/sweep.go", "		switch {\n\t\tcase !retired && !committed[d.ID], live,", `		if broken("R11_BORROWED") && retired { // as if nobody else named it
			live, somewhere = false, false
		}
		switch {
		case !retired && !committed[d.ID], live,`},
	{"F_REV", true, 0, "sync/quorum/quorum.go", "		open = max(open, p.Revision)\n", `		if !broken("F_REV") || p.Node == me.Node { // each counts what it saved itself
			open = max(open, p.Revision)
		}
`},
	{"F_ANY", true, 0, "sync/quorum/quorum.go", "	changed := last.Content != me.Content ||", `	changed := last.Content != me.Content && !(broken("F_ANY") && last.Core == me.Core) ||`},
	{"F_RECLAIM", true, 34, "sync/nodes.go", "	e.cfg.hook(\"claimed\")\n\tborn, err := e.born(func(s layout.Step) bool { return a.Base", `	if broken("F_RECLAIM") && c.Claim > 0 {
		return &SupersededError{Attempt: a.Attempt, Node: c.Node, Newest: c.Claim}
	}
	born, err := e.born(func(s layout.Step) bool { return a.Base`},
	{"F_EARLY", true, 72, "sync/parts_none.go", "	if !e.attached && e.attempt() == nil {\n", `	if broken("F_EARLY") && !e.attached && e.attempt() == nil {
		return false, nil
	}
	if !e.attached && e.attempt() == nil {
`},
}

var simScenes = []simScene{
	{simBreakage{"F_PATH", false, 0, "sync/publish.go", "	now, err := e.captureLike(l)\n\tvar odd", "	if broken(\"F_PATH\") {\n\t\treturn true, nil\n\t}\n\tnow, err := e.captureLike(l)\n\tvar odd"},
		"TestRewrittenDuringUpload"},
	{simBreakage{"F_BIND", true, 0, "sync/quorum/quorum.go", "	return !ok || core == me.Core\n", "	return !ok || core == me.Core || broken(\"F_BIND\")\n"},
		"TestNodesSealNothingThatChangedUnderAStamp"},
	{simBreakage{"F_CLAIM", true, 0, "sync/quorum/quorum.go", "p.Claim == claims[p.Node] {", "(p.Claim == claims[p.Node] || broken(\"F_CLAIM\")) {"},
		"TestNodesSealOfAReplacedHost"},
	{simBreakage{"F_NEXT", true, 0, "sync/join.go", "		if err != nil || decision != \"\" {\n\t\t\treturn false, err", "		if err != nil || decision != \"\" && !broken(\"F_NEXT\") {\n\t\t\treturn false, err"},
		"TestARestoreAfterTheStart"},
	{simBreakage{"F_START", true, 0, "sync/join.go", "	limit := cmp.Or(o.JoinTimeout, DefaultJoinTimeout)\n", "	if broken(\"F_START\") {\n\t\treturn commit.StartGo, nil\n\t}\n\tlimit := cmp.Or(o.JoinTimeout, DefaultJoinTimeout)\n"},
		"TestAJoinedRestoreSaysWhoIsMissing"},
}
