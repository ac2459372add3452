package nvidia

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
)

// asBrand shows what nvidia-smi printed in the terms of the other brands, partitions as cards of their own.
func asBrand(out string) brand.Reading {
	r, _ := parse(out)
	b := brand.Reading{Driver: r.driver}
	for _, g := range r.gpus {
		c := brand.Card{
			Index: g.index, ID: g.uuid, PCI: g.pci, Name: g.name, Minor: g.minor, MemoryMiB: g.memory, MemoryUsedMiB: g.memoryUsed,
			UtilizationPct: g.utilization, TemperatureC: g.temperature, PowerW: g.power, PowerLimitW: g.powerOf, More: g.more,
		}
		b.Cards = append(b.Cards, c)
		for _, m := range g.migs {
			part := brand.Card{Index: g.index, ID: m.uuid, Part: "mig " + strconv.Itoa(m.device), Name: m.profile, MemoryMiB: m.memory, MemoryUsedMiB: m.memoryUsed}
			if m.gi != nil && m.ci != nil {
				part.Fact("instances", strconv.Itoa(*m.gi)+"/"+strconv.Itoa(*m.ci))
			}
			b.Cards = append(b.Cards, part)
		}
	}
	return b
}

// named is what names a partition in the table: the numbers of its instances and of the device.
func named(c brand.Card) []string {
	gi, ci, _ := strings.Cut(c.Facts["instances"], "/")
	return []string{gi, ci, strings.TrimPrefix(c.Part, "mig ")}
}

// Several sensors tell the power, and several counters what each of these says.
var others = []string{"PowerW", "PowerLimitW", "RetiredPages", "RemappedRows", "ECCCorrected", "ECCUncorrected", "ClockMHz", "MemoryClockMHz"}

// everyRecorded runs a test on every recorded output.
func everyRecorded(t *testing.T, test func(t *testing.T, file, body string)) {
	t.Helper()
	files, err := filepath.Glob("testdata/recorded/*.*")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recorded outputs, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			test(t, filepath.Base(file), recorded(t, filepath.Base(file)))
		})
	}
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	everyRecorded(t, func(t *testing.T, _, body string) {
		t.Helper()
		brandtest.UnknownsIn(t, body, asBrand, named, others...)
	})
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	everyRecorded(t, func(t *testing.T, file, body string) {
		t.Helper()
		brandtest.LinesBeforeIn(t, file, body, asBrand)
		brandtest.BlanksIn(t, body, asBrand, named, "", others...)
	})
}
