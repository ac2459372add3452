package biren_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/biren"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	r := biren.Parse(brandtest.Recorded(t, "written-query.csv"))
	brandtest.Want(t, r, "0 ? ? ?/?MiB ?% ?C ?/?W", "1 ? ? ?/?MiB ?% ?C ?/?W")
	brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"svi": "Disabled"})
	brandtest.WantFacts(t, r.Cards[1].Facts, map[string]string{"svi": "Enabled"})
	r = biren.Parse(brandtest.Recorded(t, "written-query-header.csv"))
	brandtest.Want(t, r, "0 ? ? 12/?MiB ?% ?C ?/?W", "1 ? ? ?/?MiB ?% ?C ?/?W")
	if r.Cards[1].Modes != nil {
		t.Errorf("modes %v of a card that does not tell", r.Cards[1].Modes)
	}
	if r := biren.Parse(brandtest.Recorded(t, "written-banner.txt")); r.Driver != "1.11.0" || len(r.Cards) != 0 {
		t.Errorf("banner %+v", r)
	}
	for _, out := range []string{"", "Field \"svi.mode.current\" is not a valid field to query.", "0, what, 1", "x, Enabled, 1"} {
		brandtest.Want(t, biren.Parse(out))
	}
}

const query = "gpu --query-gpu=index,svi.mode.current,memory.used --format="

func tool(t *testing.T) string {
	t.Helper()
	return brandtest.Tool(t, "brsmi", map[string]brandtest.Answer{
		query + "csv,noheader,nounits": {Text: brandtest.Recorded(t, "written-query.csv")},
		"":                             {Text: brandtest.Recorded(t, "written-banner.txt")},
	})
}

func detector(root, tool string) *brand.Detector {
	return brand.New(biren.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	d := detector(t.TempDir(), tool(t))
	cards := brandtest.WantCards(t, d, "0 biren/gpu/unknown INDEX-0 ? ok", "1 biren/card/unknown-bc90aebc INDEX-1 ? "+brand.ReasonDivided)
	if cards[0].DriverVersion != "1.11.0" {
		t.Errorf("card %+v", cards[0])
	}
	if diff := cmp.Diff([]string{"/dev/biren/card_1"}, d.Nodes(cards[1])); diff != "" {
		t.Error(diff)
	}
	if processes, err := d.Processes(context.Background(), cards); err != nil || len(processes) != 0 {
		t.Errorf("processes %v, %v: the tool is not known to list them", processes, err)
	}
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:41:00.0", "1ee0", "0166", "biren", "01")
	brandtest.WantCards(t, detector(root, "no-such-brsmi"), "-1 biren/gpu/unknown PCI-0000:41:00.0 ? ok")
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "brsmi", map[string]brandtest.Answer{query + "csv": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), tool(t)))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, biren.Spec(), biren.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, biren.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, biren.Parse) }

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, biren.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, biren.Parse)
	brandtest.Blanks(t, biren.Parse, func(brand.Card) []string { return nil }, nil)
}
