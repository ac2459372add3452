package iluvatar_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/iluvatar"
)

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want         []string
		driver, cuda string
	}{
		"table-bi-v150s-4.0.0.txt": {[]string{"0 Iluvatar BI-V150S 0000:8a:00.0 114/32768MiB 0% 33C ?/?W"}, "4.1.0", ""},
		"table-bi-v100-4.0.0.txt":  {[]string{"0 Iluvatar BI-V100 0000:00:06.0 9/32768MiB 0% 35C 56/250W"}, "4.2.0", ""},
		"table-bi-v150-two-chips-4.3.0.txt": {[]string{
			"0 Iluvatar BI-V150 0000:10:00.0 64/32768MiB 0% 40C ?/?W", "1 Iluvatar BI-V150 0000:13:00.0 64/32768MiB 0% 39C 104/350W",
		}, "4.3.0", "10.2"},
	}
	for file, tc := range cases {
		r := iluvatar.Parse(brandtest.Recorded(t, file))
		brandtest.Want(t, r, tc.want...)
		if r.Driver != tc.driver || r.Facts["cuda"] != tc.cuda || !r.ProcessesKnown || slices.ContainsFunc(r.Cards, func(c brand.Card) bool { return len(c.Processes) > 0 }) {
			t.Errorf("%s: driver %q, facts %v, processes %v", file, r.Driver, r.Facts, r.Cards[0].Processes)
		}
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	body := brandtest.Recorded(t, "table-bi-v100-4.0.0.txt")
	odd := strings.NewReplacer("35C", "N/A", "9MiB / 32768MiB", "N/A / 32768MiB ", "No running processes found  ", "0   4711   python3 a.py   512").Replace(body)
	r := iluvatar.Parse("warning\n" + odd)
	brandtest.Want(t, r, "0 Iluvatar BI-V100 0000:00:06.0 ?/32768MiB 0% ?C 56/250W")
	if p := r.Cards[0].Processes; len(p) != 1 || p[0].PID != 4711 || p[0].Name != "python3 a.py" || *p[0].MemoryMiB != 512 {
		t.Errorf("processes %+v", p)
	}
	brandtest.Want(t, iluvatar.Parse("ixsmi: no driver"))
}

func detector(t *testing.T, file string) *brand.Detector {
	t.Helper()
	tool := brandtest.Tool(t, "ixsmi", map[string]brandtest.Answer{"": {Text: brandtest.Recorded(t, file)}})
	return brand.New(iluvatar.Spec(), brand.Config{Root: t.TempDir(), Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	d := detector(t, "table-bi-v150-two-chips-4.3.0.txt")
	cards := brandtest.WantCards(t, d, "0 iluvatar/gpu/BI-V150 PCI-0000:10:00.0 32768 ok", "1 iluvatar/gpu/BI-V150 PCI-0000:13:00.0 32768 ok")
	if diff := cmp.Diff([]string{"/dev/iluvatar1"}, d.Nodes(cards[1])); diff != "" {
		t.Error(diff)
	}
	samples, err := d.Sample(context.Background(), cards)
	if s := samples["PCI-0000:10:00.0"]; err != nil || s.PowerW != nil || *s.TemperatureC != 40 {
		t.Errorf("sample %+v, %v", s, err)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t, "table-bi-v150s-4.0.0.txt"))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, iluvatar.Spec(), iluvatar.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, iluvatar.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, iluvatar.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, iluvatar.Parse, map[string][]string{
		"table-bi-v100-4.0.0.txt": {"ClockMHz=1500 MemoryClockMHz=1200 FanPct=0"},
	})
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, iluvatar.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, iluvatar.Parse)
	brandtest.Blanks(t, iluvatar.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.SharedCell,
	})
}
