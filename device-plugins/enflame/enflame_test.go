package enflame_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/enflame"
)

const recorded = "table-s60-two-cards.txt"

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	r := enflame.Parse(brandtest.Recorded(t, recorded))
	brandtest.Want(t, r,
		"0 S60 0000:01:00.0 id=A000000000001 ?/49120MiB ?% 39C 105/300W", "1 S60 0000:09:00.0 id=C000J00000002 ?/42976MiB ?% 46C 128/300W")
	brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"ECC": "Disable", "Dpm": "Sleep", "DUsed": "0.0%", "FW VER": "33.6.2", "GCU Virt": "Disable"})
	brandtest.WantFacts(t, r.Cards[1].Facts, map[string]string{"ECC": "Enable", "Dpm": "Active", "DUsed": "0.0%", "FW VER": "33.6.5"})
	if r.Driver != "1.2.0.301" || r.ProcessesKnown {
		t.Errorf("driver %q", r.Driver)
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	odd := strings.NewReplacer("39 C ", "N/A  ", "49120MiB", "N/A     ", "105W  300W", "N/A   300W", "A000000000001", "xxxxxxxxxxxxx").Replace(brandtest.Recorded(t, recorded))
	r := enflame.Parse(odd)
	if got := brandtest.Line(r.Cards[0]); got != "0 S60 0000:01:00.0 ?/?MiB ?% ?C ?/300W" {
		t.Error(got)
	}
	brandtest.Want(t, enflame.Parse(""))
}

func detector(t *testing.T) *brand.Detector {
	t.Helper()
	tool := brandtest.Tool(t, "efsmi", map[string]brandtest.Answer{"": {Text: brandtest.Recorded(t, recorded)}})
	return brand.New(enflame.Spec(), brand.Config{Root: t.TempDir(), Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	d := detector(t)
	cards := brandtest.WantCards(t, d, "0 enflame/gpu/S60 GCU-A000000000001 49120 ok", "1 enflame/gpu/S60 GCU-C000J00000002 42976 ok")
	if diff := cmp.Diff([]string{"/dev/gcu1"}, d.Nodes(cards[1])); diff != "" {
		t.Error(diff)
	}
	if processes, err := d.Processes(context.Background(), cards); err != nil || len(processes) != 0 {
		t.Errorf("processes %v, %v: the tool does not list them", processes, err)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, enflame.Spec(), enflame.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, enflame.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, enflame.Parse) }

// Cards can be shared where the tool shows it switched on, whatever the model.
func TestParse_SharingIsSwitchedOn(t *testing.T) {
	t.Parallel()
	off := brandtest.Recorded(t, recorded)
	on := enflame.Parse(strings.Replace(off, "49120MiB Disable", "49120MiB Enable ", 1))
	if on.Cards[0].Facts["modes/vgcu"] != "cli" || len(on.Cards[1].Modes) != 0 || len(enflame.Parse(off).Cards[0].Modes) != 0 {
		t.Errorf("modes %v", on.Cards[0].Modes)
	}
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, enflame.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, enflame.Parse)
	brandtest.Blanks(t, enflame.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.SharedCell,
	})
}
