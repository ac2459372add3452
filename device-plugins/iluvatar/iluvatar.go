// Package iluvatar reads Iluvatar cards by ixsmi. What all brands do alike, and forms and device groups, do not belong
// here.
package iluvatar

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand. Its tool is often not on PATH.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Iluvatar, PCI: "1e3e", Signs: []string{"dev/itrctl"}, Prefix: "GPU-", Tools: []string{"ixsmi", "/usr/local/corex/bin/ixsmi"},
		Parse: Parse, Setup: setup(), Read: read, Model: model, Nodes: nodes,
	}
}

func model(printed string) string { return strings.TrimPrefix(printed, "Iluvatar ") }

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/iluvatar%d", *c.Index)}
}

func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call()
	if err != nil {
		return brand.Reading{}, err
	}
	return Parse(out), nil
}

var (
	driver = regexp.MustCompile(`Driver Version:\s*([0-9]\S*)`)
	cuda   = regexp.MustCompile(`CUDA Version:\s*(\S+)`)
)

// Parse reads the table: an entry for each chip, of which a board may have two. Of these only one reports the power.
func Parse(out string) brand.Reading {
	if !strings.Contains(out, "IX-ML") {
		return brand.Reading{}
	}
	var r brand.Reading
	if m := driver.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	if m := cuda.FindStringSubmatch(out); m != nil {
		r.Facts = map[string]string{"cuda": toolout.Text(m[1])} // the level offered; it is no NVIDIA driver
	}
	cards, _, _ := strings.Cut(out, "Processes:")
	r.Table(cards, "GPU", func(c *brand.Card, row toolout.Record) {
		c.More.ClockMHz, c.More.MemoryClockMHz = toolout.Megahertz(row["Clock-SM"]), toolout.Megahertz(row["Clock-Mem"])
	})
	list, known := toolout.Processes(out, "Processes:", 1)
	r.List(list, known, "MiB")
	return r
}
