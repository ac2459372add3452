package metax_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/metax"
)

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return metax.Parse(brandtest.Recorded(t, file))
}

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	r := parse(t, "table-c500-8cards-2.1.12.txt")
	bus := strings.Fields("0e 0f 10 12 35 36 37 38")
	util := []int{0, 0, 0, 1, 0, 1, 0, 0}
	heat := []int{36, 38, 37, 37, 37, 36, 39, 38}
	power := []int{69, 70, 69, 71, 70, 68, 73, 71}
	var want []string
	for i := range bus {
		used := 4986
		if i == 0 {
			used = 5680
		}
		want = append(want, fmt.Sprintf("%d MetaX C500 0000:%s:00.0 %d/65536MiB %d%% %dC %d/350W", i, bus[i], used, util[i], heat[i], power[i]))
	}
	brandtest.Want(t, r, want...)
	if r.Driver != "2.12.13" || !r.ProcessesKnown || len(r.Cards[0].Processes) != 8 || r.Cards[7].Processes[0].PID != 3496698 || *r.Cards[0].Processes[0].MemoryMiB != 4066 {
		t.Errorf("driver %q, processes %+v", r.Driver, r.Cards[0].Processes)
	}
	for i, c := range r.Cards[1:] {
		if p := c.Processes; len(p) != 1 || p[0].PID != 3496692+i || p[0].Name != "python3.10" || *p[0].MemoryMiB != 4154 {
			t.Errorf("processes of card %d: %+v", i+1, p)
		}
	}
	r = parse(t, "table-c500-2.3.1.txt")
	brandtest.Want(t, r, "0 MetaX C500 0000:12:00.0 826/65536MiB 0% 32C 37/350W")
	brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"board": "0", "sgpu": "Disabled", "state": "Available"})
	if r.Driver != "3.8.30" || !r.ProcessesKnown || len(r.Cards[0].Processes) != 0 {
		t.Errorf("driver %q, processes %+v", r.Driver, r.Cards[0].Processes)
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	body := brandtest.Recorded(t, "table-c500-2.3.1.txt")
	odd := strings.NewReplacer("37W / 350W", "N/A / 350W", "32C", "N/A", "826/65536 MiB", "N/A/65536 MiB", "Available  ", "Unavailable").Replace(body)
	brandtest.Want(t, metax.Parse(odd), "0 MetaX C500 0000:12:00.0 ?/65536MiB 0% ?C ?/350W dead: mx-smi reports the state Unavailable")
	if r := metax.Parse("Moffett System Management Interface\n"); !r.Foreign {
		t.Error("another maker's tool of the same name is not told apart")
	}
	brandtest.Want(t, metax.Parse(""))
}

func detector(t *testing.T, root, file string) *brand.Detector {
	t.Helper()
	tool := brandtest.Tool(t, "mx-smi", map[string]brandtest.Answer{"": {Text: brandtest.Recorded(t, file)}})
	return brand.New(metax.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	d := detector(t, t.TempDir(), "table-c500-2.3.1.txt")
	cards := brandtest.WantCards(t, d, "0 metax/gpu/C500 PCI-0000:12:00.0 65536 ok")
	if len(cards[0].Modes) != 0 {
		t.Errorf("modes %v of a card whose sharing is switched off", cards[0].Modes)
	}
	on := metax.Parse(strings.Replace(brandtest.Recorded(t, "table-c500-2.3.1.txt"), "Disabled", "Enabled ", 1))
	if diff := cmp.Diff([]string{"sgpu"}, on.Cards[0].Modes); diff != "" {
		t.Error(diff)
	}
	processes, err := d.Processes(context.Background(), cards)
	if diff := cmp.Diff(map[string][]int{"PCI-0000:12:00.0": {}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
	// The bus has no card of this maker: a tool of the name is somebody else's.
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:12:00.0", "1eff", "0001", "mf", "01")
	brandtest.WantCards(t, detector(t, root, "table-c500-2.3.1.txt"))
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t, t.TempDir(), "table-c500-8cards-2.1.12.txt"))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, metax.Spec(), metax.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, metax.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, metax.Parse) }

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, metax.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, metax.Parse)
	brandtest.Blanks(t, metax.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-c500-8cards-*.txt": brandtest.SharedCell,
	})
}
