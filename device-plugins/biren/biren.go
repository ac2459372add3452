// Package biren reads Biren cards by brsmi. Little is public about the tool: only what public code shows of it is asked
// for. What all brands do alike, and forms and device groups, do not belong here.
package biren

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Biren, PCI: "1ee0", Signs: []string{"dev/biren-m", "dev/biren/card_*"}, Prefix: "GPU-",
		Tools: []string{"brsmi", "/usr/local/birensupa/driver/bin/brsmi"}, Parse: Parse, Setup: setup(), Read: read, Nodes: nodes,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/biren/card_%d", *c.Index)}
}

// fields are those that public code asks for. A tool may refuse a whole query for one that it does not know.
var fields = []string{"index", "svi.mode.current", "memory.used"}

// read asks with units first, and as public code asks where the tool does not know that.
func read(_ string, call brand.Call) (brand.Reading, error) {
	var r brand.Reading
	for _, format := range []string{"csv", "csv,noheader,nounits"} {
		out, err := call("gpu", "--query-gpu="+strings.Join(fields, ","), "--format="+format)
		if err != nil {
			return r, err
		}
		if r = Parse(out); len(r.Cards) > 0 {
			break
		}
	}
	if out, err := call(); err == nil {
		r.Merge(Parse(out))
	}
	return r, nil
}

var banner = regexp.MustCompile(`Driver Version:\s*([0-9]\S*)`)

// Parse reads the answer to a query, with or without its header, and the version in the banner.
func Parse(out string) brand.Reading {
	var r brand.Reading
	if m := banner.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	for row := range toolout.CSV(out, fields, "index") {
		index, svi := toolout.Whole(row["index"]), row.First("svi.mode.current")
		if index == nil || svi != "" && svi != "Enabled" && svi != "Disabled" {
			continue
		}
		c := r.At(*index)
		c.MemoryUsedMiB = toolout.MiB(row["memory.used"], "")
		if svi != "" {
			c.Mode(accel.ModeSVI, "cli")
			c.Fact("svi", svi)
			c.Divided = svi == "Enabled" // how its instances are listed is not public
		}
	}
	return r
}
