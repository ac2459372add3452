// Package migtool reads what `nvidia-smi mig` prints: which partitions a board allows, where they may lie, which there are,
// and what became of an order to make some. Making them, and the cards of a machine, do not belong here.
package migtool

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// Profile is one size of partition that a board allows, from `mig -lgip`.
type Profile struct {
	GPU         int    // index of the board
	Name        string // such as 1g.10gb or 1g.10gb+me
	ID          int
	Free, Total int      // instances that can be made now, and that an empty board has room for
	MemoryMiB   *uint64  // rounded down
	SMs         *float64 // multiprocessors
}

// Placement is where instances of a profile may begin, in memory slices of the board, from `mig -lgipp`.
type Placement struct {
	GPU, Profile int
	Starts       []int
	Size         int
}

// Instance is one that exists, from `mig -lgi`.
type Instance struct {
	GPU           int
	Name          string
	Profile, ID   int
	Start, Length int // in memory slices
}

// Made is an instance that an order made, from `mig -cgi … -C`.
type Made struct {
	GPU, Instance, Profile int
	Name                   string
	Compute                []int // compute instances in it
}

var (
	profileLine   = regexp.MustCompile(`^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+(\S+)\s+\S+\s+(\S+)`)
	placementLine = regexp.MustCompile(`^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,]+)\}:(\d+)\s*$`)
	instanceLine  = regexp.MustCompile(`^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|`)
	madeLine      = regexp.MustCompile(`^Successfully created GPU instance ID\s+(\d+) on GPU\s+(\d+) using profile MIG (\S+) \(ID\s+(\d+)\)`)
	computeLine   = regexp.MustCompile(`^Successfully created compute instance ID\s+(\d+) on GPU\s+(\d+) GPU instance ID\s+(\d+)\s`)
	refusedLine   = regexp.MustCompile(`^(?:Unable|Failed) to create .*: (.+?)\s*$`)
)

// most bounds what is taken of one text. No board has so many.
const most = 1024

// lines calls found with the parts of each line of this form; it ends when found wants no more.
func lines(out string, form *regexp.Regexp, found func(m []string) bool) {
	for line := range strings.Lines(out) {
		if m := form.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil && !found(m) {
			return
		}
	}
}

// numbers reads whole numbers; ok is false when one of them is none.
func numbers(texts ...string) (all []int, ok bool) {
	for _, s := range texts {
		n := toolout.Whole(s)
		if n == nil {
			return nil, false
		}
		all = append(all, *n)
	}
	return all, true
}

// Profiles reads `nvidia-smi mig -lgip`.
func Profiles(out string) []Profile {
	var all []Profile
	lines(out, profileLine, func(m []string) bool {
		if n, ok := numbers(m[1], m[3], m[4], m[5]); ok {
			all = append(all, Profile{
				GPU: n[0], Name: m[2], ID: n[1], Free: n[2], Total: n[3], MemoryMiB: toolout.MiB(m[6], "GiB"), SMs: toolout.Count(m[7]),
			})
		}
		return len(all) < most
	})
	return all
}

// Placements reads `nvidia-smi mig -lgipp`.
func Placements(out string) []Placement {
	var all []Placement
	lines(out, placementLine, func(m []string) bool {
		n, ok := numbers(m[1], m[2], m[4])
		starts, also := numbers(strings.Split(m[3], ",")...)
		if ok && also && len(starts) <= most {
			all = append(all, Placement{GPU: n[0], Profile: n[1], Starts: starts, Size: n[2]})
		}
		return len(all) < most
	})
	return all
}

// Instances reads `nvidia-smi mig -lgi`.
func Instances(out string) []Instance {
	var all []Instance
	lines(out, instanceLine, func(m []string) bool {
		if n, ok := numbers(m[1], m[3], m[4], m[5], m[6]); ok {
			all = append(all, Instance{GPU: n[0], Name: m[2], Profile: n[1], ID: n[2], Start: n[3], Length: n[4]})
		}
		return len(all) < most
	})
	return all
}

// Created reads the answer to `nvidia-smi mig -cgi … -C`: what was made, and why no more was.
func Created(out string) ([]Made, error) {
	var all []Made
	lines(out, madeLine, func(m []string) bool {
		if n, ok := numbers(m[1], m[2], m[4]); ok {
			all = append(all, Made{Instance: n[0], GPU: n[1], Name: m[3], Profile: n[2]})
		}
		return len(all) < most
	})
	lines(out, computeLine, func(m []string) bool {
		n, ok := numbers(m[1], m[2], m[3])
		i := slices.IndexFunc(all, func(made Made) bool { return ok && made.GPU == n[1] && made.Instance == n[2] })
		if i >= 0 && len(all[i].Compute) < most {
			all[i].Compute = append(all[i].Compute, n[0])
		}
		return true
	})
	var why error
	lines(out, refusedLine, func(m []string) bool {
		why = fmt.Errorf("make MIG partitions: %s", strings.ToLower(m[1]))
		return false
	})
	return all, why
}
