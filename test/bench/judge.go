package main

// The targets for moving files. Processor time is judged on the sink, which
// is not what limits; a real server here is slower than its clients.
const (
	upCost     = 1.1     // CPU s/GiB up over http
	overS5cmd  = 1.0 / 2 // of its CPU
	overAWS    = 1.0 / 3 // of its CPU
	throughput = 0.9     // of the floor with the same digests
	overhead   = 1.1     // CPU of the floor with the same digests
	quickly    = 1.0     // seconds to commit an unchanged step
	mostMemory = 512     // MiB at defaults
)

// judgeMoves looks at the tables.
func (b *bench) judgeMoves() {
	for _, name := range []string{"big", "shards"} {
		if t := b.report.table(name, up, "sink", "http"); t != nil {
			b.judgeUp(t)
		}
		if t := b.report.table(name, up, "sink", "https"); t != nil {
			b.judgeSecure(t)
		}
		for _, scheme := range []string{"http", "https"} {
			if t := b.report.table(name, down, "sink", scheme); t != nil {
				b.judgeDown(t)
			}
		}
	}
	for _, t := range b.report.Tables {
		if t.Case == "small" {
			b.judgeSmall(t)
		}
		if r := t.row(nameProgram); (t.Case == "again" || t.Case == "again-big") && r != nil {
			b.judgeAgain(t, r)
		}
		if r := t.row(nameProgram); r != nil {
			b.report.judge("memory at defaults, "+t.title(), r.peak().greatest <= mostMemory, "%s MiB, at most %d", number(r.peak().greatest), mostMemory)
		}
	}
}

// cost is the CPU s/GiB of a row.
func (t *table) cost(r *row) float64 { return r.cpu().median / (float64(t.Bytes) / (1 << 30)) }

func (b *bench) judgeUp(t *table) {
	own := t.row(nameProgram)
	if own == nil {
		return
	}
	title := t.title()
	b.report.judge("CPU, "+title, t.cost(own) <= upCost, "%.2f s/GiB, at most %.2f", t.cost(own), upCost)
	b.compare("CPU against s5cmd, "+title, t, own, "s5cmd", overS5cmd, (*row).cpu)
	b.compare("CPU against aws cli, "+title, t, own, "aws s3 cp", overAWS, (*row).cpu)
	b.compare("wall time against the floor, "+title, t, own, nameDigests, 1/throughput, (*row).wall)
}

// judgeSecure: the floor without digests, the digests, and a tenth.
func (b *bench) judgeSecure(t *table) {
	own, floor, hash := t.row(nameProgram), t.row(nameFloor), t.row(nameHash)
	what := "CPU, " + t.title()
	if own == nil || floor == nil || hash == nil {
		b.report.skip(what, "without the floor and the digests alone it cannot be told")
		return
	}
	most := overhead * (t.cost(floor) + t.cost(hash))
	b.report.judge(what, t.cost(own) <= most, "%.2f s/GiB, at most %.2f (floor %.2f, digests %.2f, and 10 %%)", t.cost(own), most, t.cost(floor), t.cost(hash))
}

func (b *bench) judgeDown(t *table) {
	own := t.row(nameProgram)
	if own == nil {
		return
	}
	b.compare("wall time against the floor, "+t.title(), t, own, nameDigests, 1/throughput, (*row).wall)
	b.compare("CPU against the floor, "+t.title(), t, own, nameDigests, overhead, (*row).cpu)
}

func (b *bench) judgeSmall(t *table) {
	own := t.row(nameProgram)
	if own == nil {
		return
	}
	b.compare("objects/s against s5cmd, "+t.title(), t, own, "s5cmd", 1, (*row).wall)
}

// compare judges the ratio of ckptsync to another row.
func (b *bench) compare(what string, t *table, own *row, other string, most float64, of func(*row) spread) {
	r := t.row(other)
	if r == nil {
		b.report.skip(what, "%s was not measured", other)
		return
	}
	got := of(own).median / of(r).median
	b.report.judge(what, got <= most, "%.2f times, at most %.2f (%s against %s s)", got, most, of(own), of(r))
}

func (b *bench) judgeAgain(t *table, r *row) {
	var sent int64
	for _, s := range r.Samples {
		sent = max(sent, s.Sent-int64(len("done\n")), s.DataIn-int64(len("done\n"))) // the marker is a new file
	}
	b.report.judge("nothing unchanged is sent, "+t.title(), sent <= 0, "%d bytes of data", max(sent, 0))
	if t.Case != "again" {
		return
	}
	c := r.spread(func(s sample) float64 { return s.Commit })
	b.report.judge("an unchanged step is committed soon, "+t.title(), c.median < quickly, "%s s, less than %.0f", c, quickly)
}
