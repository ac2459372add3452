package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// offered is what one card becomes under a config's forms, one line a group.
func offered(t *testing.T, forms map[string]string, cards ...accel.Card) []string {
	t.Helper()
	cfg := DefaultConfig()
	cfg.StateDir, cfg.Forms = t.TempDir(), forms
	p := New(func(Config) ([]Detector, error) { return nil, nil }, hclog.NewNullLogger())
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	if err := p.ready(); err != nil {
		t.Fatal(err)
	}
	var offers []offer
	for _, c := range cards {
		offers = append(offers, p.offer(c))
	}
	var lines []string
	for _, g := range deviceGroups(offers) {
		lines = append(lines, line(g))
	}
	return lines
}

func line(g *devicepb.DeviceGroup) string {
	text := fmt.Sprintf("%s/%s/%s", g.GetVendor(), g.GetDeviceType(), g.GetDeviceName())
	for _, name := range []string{accel.AttrForm, accel.AttrPolicy, accel.AttrParent, accel.AttrRounding, accel.AttrState} {
		if a := g.GetAttributes()[name]; a != nil {
			text += " " + name + "=" + a.GetStringVal()
		}
	}
	if a := g.GetAttributes()[accel.AttrUnitMemory]; a != nil {
		text += fmt.Sprintf(" unit=%d", a.GetIntVal())
	}
	if n := len(g.GetDevices()); n > 0 {
		text += fmt.Sprintf(" %d of %s %s", n, g.GetDevices()[0].GetID(), g.GetDevices()[0].GetHealthDescription())
	}
	return strings.TrimSpace(text)
}

const a30Rule = "rounding=mig:parts=4,1g.6gb=5952/1*4,2g.12gb=11968/2*2,4g.24gb=21504/4*1"

func a30(form accel.Form, modes ...string) accel.Card {
	mib := uint64(24576)
	return accel.Card{Vendor: accel.NVIDIA, Model: "A30", RawName: "NVIDIA A30", UUID: "GPU-a", MemoryMiB: &mib, Form: form, Modes: modes, Health: accel.Health{OK: true}}
}

func TestOffered_MIG(t *testing.T) {
	t.Parallel()
	short := a30(accel.Whole).ShortID()
	unknown := a30(accel.MIG, "mig")
	unknown.Model, unknown.RawName = "A99", "NVIDIA A99"
	board, part := a30(accel.Divided, "mig"), a30(accel.Partition)
	part.Model, part.RawName, part.UUID, part.Parent = "A30 MIG 1g.6gb", "NVIDIA A30 MIG 1g.6gb", "MIG-1", "GPU-a"
	want := map[string]struct {
		forms string
		cards []accel.Card
		want  []string
	}{
		"in slices, where the config wants it and the mode is on": {"mig", []accel.Card{a30(accel.MIG, "mig", "mps")}, []string{
			"nvidia/mig/A30-" + short + " form=mig form_policy=fixed rounding=mig:parts=4,1g.6gb=5952/1*4,2g.12gb=11968/2*2,4g.24gb=21504/4*1;mps:memory=1,parts=100 state=ok unit=6144 4 of c" + short + ".0",
		}},
		"not at all, where nobody wants it": {"", []accel.Card{a30(accel.MIG, "mig")}, []string{
			"nvidia/card/A30-" + short + " form=whole form_policy=fixed " + a30Rule + " state=bad unit=24576",
			"nvidia/gpu/A30 form=whole form_policy=fixed " + a30Rule + " state=bad unit=24576 1 of GPU-a " + reasonMIGEmpty,
		}},
		"not while the mode is off": {"mig", []accel.Card{a30(accel.Whole, "mig")}, []string{
			"nvidia/mig/A30-" + short + " form=mig form_policy=fixed " + a30Rule + " state=bad unit=6144 4 of c" + short + ".0 " + reasonMIGOff,
		}},
		"not without the mode": {"mig", []accel.Card{a30(accel.Whole, "mps")}, []string{
			"nvidia/mig/A30-" + short + " form=mig form_policy=fixed rounding=mps:memory=1,parts=100 state=bad 1 of c" + short + ".0 " + reasonNoMIG,
		}},
		"not in sizes that nobody knows": {"mig", []accel.Card{unknown}, []string{
			"nvidia/mig/A99-" + short + " form=mig form_policy=fixed state=bad 1 of c" + short + ".0 " + reasonMIGSizes,
		}},
		"a divided board is withdrawn, whatever a rule says": {"shared", []accel.Card{board, part}, []string{
			"nvidia/card/A30 MIG 1g.6gb-" + part.ShortID() + " form=partition form_policy=fixed parent=GPU-a state=ok unit=24576",
			"nvidia/card/A30-" + short + " form=divided form_policy=fixed state=ok",
			"nvidia/gpu/A30 MIG 1g.6gb form=partition form_policy=fixed state=ok unit=24576 1 of MIG-1",
		}},
	}
	for name, tc := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forms := map[string]string{}
			if tc.forms != "" {
				forms["*"] = tc.forms
			}
			if diff := cmp.Diff(tc.want, offered(t, forms, tc.cards...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What a probe told of a mode goes before what is published of it; a mode that nothing is known of has no rule.
func TestRoundings_ProbedGoesFirst(t *testing.T) {
	t.Parallel()
	c := a30(accel.Whole, "hami", "mig", "warp")
	c.Rounding = []accel.Rounding{{Mode: "mig", Parts: 4, Templates: []accel.Template{{Name: "1g.6gb", MemoryMiB: 5949, Parts: 1}}}, {Mode: "mps", StepMiB: 2}}
	if got := accel.FormatRounding(roundings(c)); got != "hami:memory=1,parts=100;mig:parts=4,1g.6gb=5949/1" {
		t.Errorf("rules %s", got)
	}
	if i := slices.IndexFunc(roundings(a30(accel.Partition, "mig")), func(accel.Rounding) bool { return true }); i >= 0 {
		t.Error("a partition has rules")
	}
}
