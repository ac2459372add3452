package sim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/internal/accel"
)

var ctx = context.Background()

// load copies the example beside a control file that the test can write.
func load(t *testing.T) (detectors map[accel.Vendor]*Detector, setControl func(string)) {
	t.Helper()
	dir := t.TempDir()
	body, err := os.ReadFile("testdata/every.hcl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sim.hcl")
	if err := os.WriteFile(path, body, 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	detectors = map[accel.Vendor]*Detector{}
	for _, d := range list {
		detectors[d.Vendor()] = d
	}
	return detectors, func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "control.hcl"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func detect(t *testing.T, d *Detector) []accel.Card {
	t.Helper()
	cards, err := d.Detect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return cards
}

func TestLoad_EveryBrandAlwaysTheSame(t *testing.T) {
	t.Parallel()
	first, _ := load(t)
	again, _ := load(t)
	if len(first) != len(accel.Vendors()) {
		t.Fatalf("%d brands", len(first))
	}
	uuids, places := map[string]bool{}, map[string]bool{}
	for v, d := range first {
		cards := detect(t, d)
		if diff := cmp.Diff(cards, detect(t, again[v])); diff != "" {
			t.Errorf("%s differs between two loads:\n%s", v, diff)
		}
		for _, c := range cards {
			if !strings.HasPrefix(c.UUID, "SIM-"+strings.ToUpper(string(v))+"-") || !c.Health.OK || uuids[c.UUID] || places[c.PCIAddress] {
				t.Errorf("card %+v", c)
			}
			uuids[c.UUID], places[c.PCIAddress] = true, true
		}
	}
	a100 := detect(t, first[accel.NVIDIA])
	if len(a100) != 2 || *a100[1].MemoryMiB != 80<<10 || *a100[1].NUMANode != 0 || a100[1].Index != 1 || strings.Join(a100[1].Modes, ",") != "mig,mps" {
		t.Errorf("cards %+v", a100)
	}
	if s4000 := detect(t, first[accel.MThreads])[0]; s4000.Model != "S4000" || s4000.RawName != "MTT S4000" {
		t.Errorf("card %+v", s4000)
	}
	if amd := detect(t, first[accel.AMD])[0]; amd.MemoryMiB != nil {
		t.Errorf("memory %d was invented", *amd.MemoryMiB)
	}
}

func TestNode_MakesOtherUUIDs(t *testing.T) {
	t.Parallel()
	block := []cardBlock{{Vendor: "ascend", Model: "910B3"}}
	a, errA := file{Node: "a", Cards: block}.cards()
	b, errB := file{Node: "b", Cards: block}.cards()
	if errA != nil || errB != nil || a[0].UUID == b[0].UUID {
		t.Errorf("%v %v, %v %v", a, b, errA, errB)
	}
}

func TestFaults_SwitchWhileRunning(t *testing.T) {
	t.Parallel()
	brands, setControl := load(t)
	d := brands[accel.Ascend]
	uuid := detect(t, d)[1].UUID

	setControl(`fault "ascend/0" { health = "overheated" }`)
	if c := detect(t, d)[0]; c.Health.OK || c.Health.Reason != "overheated" {
		t.Errorf("health %+v", c.Health)
	}
	setControl(`fault "` + uuid + `" { gone = true }`)
	if cards := detect(t, d); len(cards) != 1 || cards[0].UUID == uuid {
		t.Errorf("cards %+v", cards)
	}
	setControl(`fault "ascend" { error = "driver crashed" }`)
	if _, err := d.Detect(ctx); err == nil || err.Error() != "driver crashed" {
		t.Errorf("error %v", err)
	}
	detect(t, brands[accel.Hygon]) // is not touched by another brand's trouble
	setControl(`process {
  card = "ascend/0"
  pid  = 4711
}`)
	cards := detect(t, d)
	processes, err := d.Processes(ctx, cards)
	if err != nil || len(processes[cards[0].UUID]) != 1 || processes[uuid] == nil || len(processes[uuid]) != 0 {
		t.Errorf("processes %v, %v", processes, err)
	}
	setControl("")
	if cards := detect(t, d); len(cards) != 2 || !cards[0].Health.OK {
		t.Errorf("cards do not recover: %+v", cards)
	}
}

func TestDelay_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	brands, setControl := load(t)
	setControl("delay {\n  vendor      = \"biren\"\n  fingerprint = \"1h\"\n  reserve     = \"1h\"\n  stats       = \"1h\"\n}")
	short, cancel := context.WithCancel(ctx)
	cancel()
	d := brands[accel.Biren]
	_, detectErr := d.Detect(short)
	_, sampleErr := d.Sample(short, nil)
	for what, err := range map[string]error{"detect": detectErr, "sample": sampleErr, "reserve": d.BeforeReserve(short, nil)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	detect(t, brands[accel.Hygon])
	if err := brands[accel.Hygon].BeforeReserve(ctx, nil); err != nil {
		t.Error(err)
	}
}

func TestSample_Wave(t *testing.T) {
	t.Parallel()
	brands, setControl := load(t)
	again, _ := load(t)
	cards := detect(t, brands[accel.NVIDIA])
	seen := map[float64]bool{}
	for range 60 {
		a, errA := brands[accel.NVIDIA].Sample(ctx, cards)
		b, errB := again[accel.NVIDIA].Sample(ctx, cards)
		if diff := cmp.Diff(a, b); diff != "" || errA != nil || errB != nil {
			t.Fatalf("two runs differ: %s %v %v", diff, errA, errB)
		}
		s := a[cards[0].UUID]
		if *s.UtilizationPct < 0 || *s.UtilizationPct > 100 || *s.MemoryUsedMiB > *cards[0].MemoryMiB {
			t.Fatalf("sample %+v", s)
		}
		seen[*s.UtilizationPct] = true
	}
	if len(seen) < 20 || !seen[0] || !seen[100] {
		t.Errorf("not a wave: %v", seen)
	}
	amd := detect(t, brands[accel.AMD])
	if s, err := brands[accel.AMD].Sample(ctx, amd); err != nil || s[amd[0].UUID].MemoryUsedMiB != nil {
		t.Errorf("samples %v, %v", s, err)
	}
	setControl(`fault "nvidia/0" { mute = true }`)
	if s, err := brands[accel.NVIDIA].Sample(ctx, cards); err != nil || len(s) != 1 {
		t.Errorf("samples %v, %v", s, err)
	}
}

func TestLoad_RefusalsSayWhereAndWhat(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ src, want string }{
		"syntax":       {"card {", "sim.hcl:1"},
		"unknown key":  {`seeds = 1`, "sim.hcl:1"},
		"brand":        {`card "nvidea" { model = "A100" }`, "card block 1: unknown brand"},
		"memory":       {"card \"amd\" {\n  model  = \"MI300X\"\n  memory = \"192\"\n}", "has no unit"},
		"no card":      {"seed = 1", "it has no card block: write"},
		"empty model":  {`card "amd" { model = " " }`, "model is empty"},
		"count":        {"card \"amd\" {\n  model = \"MI300X\"\n  count = -1\n}", "outside"},
		"second block": {"card \"amd\" {\n  model = \"MI300X\"\n}\ncard \"x\" {\n  model = \"y\"\n}", "card block 2"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "sim.hcl")
			if err := os.WriteFile(path, []byte(tc.src), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	_, err := Load(filepath.Join(t.TempDir(), "none.hcl"))
	if err == nil || !strings.HasPrefix(err.Error(), "sim_config: ") || !strings.Contains(err.Error(), "none.hcl") {
		t.Errorf("an absent file: %v, want an error that names the option and the file", err)
	}
}

func TestEvents_BefallOnce(t *testing.T) {
	t.Parallel()
	brands, setControl := load(t)
	d := brands[accel.NVIDIA]
	if got := d.Events(); got == nil || len(got) > 0 {
		t.Errorf("events %v", got)
	}
	const fault = `event "nvidia/1" {
  text  = "Xid 79: fallen off the bus"
  blame = "card"
`
	setControl(fault + "}")
	want := []device.Event{{Card: detect(t, d)[1].UUID, Code: "simulated", Text: "Xid 79: fallen off the bus", Blame: device.BlameCard}}
	if diff := cmp.Diff(want, d.Events()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := d.Events(); len(got) > 0 {
		t.Errorf("told twice: %v", got)
	}
	setControl(fault + "  id = 2\n}")
	if diff := cmp.Diff(want, d.Events()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	setControl(`event "nvidia" {
  text  = "x"
  blame = "user"
}`)
	if _, err := d.Detect(ctx); err == nil || !strings.Contains(err.Error(), `write blame = "card"`) {
		t.Errorf("error %v", err)
	}
}

func TestControl_BrokenFileIsAnErrorNotANewWorld(t *testing.T) {
	t.Parallel()
	brands, setControl := load(t)
	for _, text := range []string{"fault {", "delay { fingerprint = \"soon\" }", "nonsense = 1"} {
		setControl(text)
		if _, err := brands[accel.AMD].Detect(ctx); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func FuzzControl(f *testing.F) {
	f.Add(`fault "ascend/0" { gone = true }`)
	f.Add("delay {\n  reserve = \"1s\"\n}")
	f.Fuzz(func(t *testing.T, text string) {
		var c control
		if err := decode("control.hcl", []byte(text), &c); err != nil || c.check() != nil {
			return
		}
		for _, v := range accel.Vendors() {
			if c.delay(v, func(b delayBlock) string { return b.Stats }) < 0 && !strings.Contains(text, "-") {
				t.Error("negative delay")
			}
		}
	})
}

func FuzzFile(f *testing.F) {
	if src, err := os.ReadFile("testdata/every.hcl"); err == nil {
		f.Add(string(src))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var parsed file
		if decode("sim.hcl", []byte(text), &parsed) != nil {
			return
		}
		cards, err := parsed.cards()
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, c := range cards {
			if seen[c.UUID] || c.Model == "" {
				t.Errorf("card %+v", c)
			}
			seen[c.UUID] = true
		}
	})
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	brands, _ := load(t)
	for v, d := range brands {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			detectortest.Run(t, d)
		})
	}
}
