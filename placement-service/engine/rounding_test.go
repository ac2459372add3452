package engine

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A share of a card in MIG mode takes the slices of the profile that is made for it, not of the memory that was asked.
func TestUnits_OfMIGProfiles(t *testing.T) {
	t.Parallel()
	rules, err := accel.ParseRounding("mig:parts=7,1g.10gb=9984/1*7,1g.20gb=19968/1*4,2g.20gb=20096/2*3,3g.40gb=40448/3*2,7g.80gb=80384/7*1")
	if err != nil {
		t.Fatal(err)
	}
	p := Pool{Form: accel.MIG, UnitMiB: 81559 / 8, Total: 8, Rounding: rules}
	for _, tc := range []struct {
		ask  accel.Ask
		want int
	}{
		{accel.Ask{MemoryMiB: 5000}, 1},
		{accel.Ask{MemoryMiB: 10240}, 2},
		{accel.Ask{MemoryMiB: 25000}, 4},
		{accel.Ask{MemoryMiB: 41000}, 8},
		{accel.Ask{MemoryMiB: 81000}, 0},
		{accel.Ask{MemoryMiB: 5000, ComputePct: 40}, 4},
		{accel.Ask{MemoryMiB: 5000, ComputePct: 28}, 2},
	} {
		if got := p.units(&tc.ask); got != tc.want {
			t.Errorf("%d MiB and %d %% take %d slices, want %d", tc.ask.MemoryMiB, tc.ask.ComputePct, got, tc.want)
		}
	}
	p.Rounding = nil
	if got := p.units(&accel.Ask{MemoryMiB: 25000}); got != 3 {
		t.Errorf("without a rule %d slices", got)
	}
}

func TestSize_ByTheModesThatMakeTheShare(t *testing.T) {
	t.Parallel()
	rules, err := accel.ParseRounding("vnpu:parts=20,vir05_1c_8g=8192/5,vir10_3c_16g=16384/10;smlu:memory=256;sgpu:memory=1024")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		modes   []string
		ask     accel.Ask
		want    uint64
		by      string
		largest uint64
	}{
		"templates":             {[]string{"vnpu"}, accel.Ask{MemoryMiB: 5000}, 8192, "vnpu", 0},
		"a template's own":      {[]string{"vnpu"}, accel.Ask{MemoryMiB: 8192}, 8192, "vnpu", 0},
		"by compute":            {[]string{"vnpu"}, accel.Ask{MemoryMiB: 5000, ComputePct: 40}, 16384, "vnpu", 0},
		"none as large":         {[]string{"vnpu"}, accel.Ask{MemoryMiB: 20000}, 0, "vnpu", 16384},
		"steps":                 {[]string{"smlu"}, accel.Ask{MemoryMiB: 5000}, 5120, "smlu", 0},
		"more steps than card":  {[]string{"smlu"}, accel.Ask{MemoryMiB: 32760}, 0, "smlu", 32512},
		"a mode without a rule": {[]string{"hami"}, accel.Ask{MemoryMiB: 5000}, 5000, "", 0},
		"silver of two":         {[]string{"vnpu", "sgpu"}, accel.Ask{MemoryMiB: 5000, QoS: accel.Silver}, 5120, "sgpu", 0},
		"gold of two":           {[]string{"sgpu", "vnpu"}, accel.Ask{MemoryMiB: 5000, QoS: accel.Gold}, 8192, "vnpu", 0},
		"the best of two":       {[]string{"sgpu", "vnpu"}, accel.Ask{MemoryMiB: 5000}, 8192, "vnpu", 0},
		"silver by gold":        {[]string{"vnpu"}, accel.Ask{MemoryMiB: 5000, QoS: accel.Silver}, 8192, "vnpu", 0},
		"two of one quality":    {[]string{"smlu", "vnpu"}, accel.Ask{MemoryMiB: 8000}, 8192, "vnpu", 0},
		"bronze":                {[]string{"vnpu"}, accel.Ask{MemoryMiB: 5000, QoS: accel.Bronze}, 5000, "", 0},
		"nothing makes shares":  {nil, accel.Ask{MemoryMiB: 5000}, 5000, "", 0},
	} {
		p := Pool{Form: accel.Shared, UnitMiB: 250, Total: 131, Modes: tc.modes, Rounding: rules}
		got, by, largest := p.size(&tc.ask, tc.ask.MemoryMiB)
		if got != tc.want || by != tc.by || largest != tc.largest {
			t.Errorf("%s: %d by %q, at most %d; want %d by %q, at most %d", name, got, by, largest, tc.want, tc.by, tc.largest)
		}
	}
}

const npuRule = "vnpu:parts=20,vir05_1c_8g=8192/5,vir10_3c_16g=16384/10"

func npu(used int) testCard {
	return testCard{Vendor: accel.Ascend, Model: "910B4", GiB: 32, Modes: []string{"vnpu"}, Rounding: npuRule, Used: used}
}

func askFor(count int, a accel.Ask) Request {
	a.Count = max(a.Count, 1)
	return Request{JobID: "j", Groups: []GroupAsk{{Name: "g", Count: count, Tasks: []TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &a}}}}}
}

// A share is placed with the size that is made, on cards that all make it: those that make every size beside those that do not.
func TestDecide_GrantsTheRoundedSize(t *testing.T) {
	t.Parallel()
	mlu := testCard{Vendor: accel.Cambricon, Model: "MLU370", GiB: 24, Modes: []string{"smlu"}, Rounding: "smlu:memory=256,parts=100"}
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{npu(20)}}, testNode{Name: "n2", Cards: []testCard{mlu}})
	d := New(Config{}).Decide(s, askFor(3, accel.Ask{MemoryMiB: 7000}))
	if !d.Placed {
		t.Fatal(d.Refusal.Sentence)
	}
	shape := d.Groups[0].Tasks[0]
	if shape.GrantMiB() != 7168 && shape.GrantMiB() != 8192 {
		t.Errorf("granted are %d MiB", shape.GrantMiB())
	}
	for _, p := range d.Groups[0].Placements {
		if units := p.Tasks[0].Claims[0].Units; uint64(units)*1024 != shape.GrantMiB() {
			t.Errorf("%d slices for %d MiB", units, shape.GrantMiB())
		}
	}
	d = New(Config{}).Decide(s, askFor(1, accel.Ask{MemoryMiB: 5000, Vendors: []accel.Vendor{accel.Ascend}}))
	const want = `task "t" asks for 4.9 GiB and gets 8 GiB, the next larger size that vnpu makes`
	if got := d.Rounded(); got != want || d.Groups[0].Tasks[0].GrantMiB() != 8192 {
		t.Errorf("said is %q, want %q; granted %d MiB", got, want, d.Groups[0].Tasks[0].GrantMiB())
	}
	d = New(Config{}).Decide(s, askFor(1, accel.Ask{MemoryMiB: 8192}))
	if got := d.Rounded(); got != "" {
		t.Errorf("an ask of just the size is said to be rounded: %q", got)
	}
}

func TestDecide_SaysWhatAShareIsRoundedTo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		used int
		ask  accel.Ask
		want string
	}{
		"too little is free": {27, accel.Ask{MemoryMiB: 5000}, "needs 8 GiB on one card, to which vnpu rounds 4.9 GiB; best card is 910B4-c38cc70e on node n1 with 5 GiB free: 3 GiB short"},
		"none as large":      {0, accel.Ask{MemoryMiB: 20480}, "needs 20 GiB on one card; best card is 910B4-c38cc70e on node n1, of which vnpu makes shares of at most 16 GiB, none of them 20 GiB: ask for less, or leave memory out for the whole card"},
		"none with as much":  {0, accel.Ask{MemoryMiB: 5000, ComputePct: 60}, "needs 4.9 GiB on one card; best card is 910B4-c38cc70e on node n1, of which vnpu makes shares of at most 16 GiB, none of them 4.9 GiB with 60 % of compute: ask for less, or leave memory out for the whole card"},
	} {
		d := New(Config{}).Decide(snapshotOf(testNode{Name: "n1", Cards: []testCard{npu(tc.used)}}), askFor(1, tc.ask))
		if d.Placed || d.Refusal.Sentence != tc.want || d.Refusal.Code != CodeMemory {
			t.Errorf("%s: %+v\nwant %s", name, d.Refusal, tc.want)
		}
	}
}

// A job whose cards are not known when it is admitted asks for a size that all of them make.
func TestDecide_LooseSizeSuitsEveryCard(t *testing.T) {
	t.Parallel()
	other := npu(0)
	other.Rounding = "vnpu:parts=20,a=6144/4,b=12288/8"
	steps := npu(0)
	steps.Modes, steps.Rounding = []string{"smlu"}, "smlu:memory=5120"
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{other, steps}})
	r := askFor(1, accel.Ask{MemoryMiB: 5000, QoS: accel.Gold})
	r.Loose = "system"
	d := New(Config{}).Decide(s, r)
	if !d.Placed {
		t.Fatal(d.Refusal.Sentence)
	}
	if shape := d.Groups[0].Tasks[0]; shape.GrantMiB() != 15360 && shape.GrantMiB() != 12288 || shape.Blocks[0].Count*1024 != int(shape.GrantMiB()) {
		t.Errorf("granted are %d MiB by %d slices", shape.GrantMiB(), shape.Blocks[0].Count)
	}
}
