//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// A figure is one thing that is measured of every target, once a round.
type figure struct {
	name  string
	unit  string
	scale float64 // of what is shown
	// goal is the bar: a ratio to HAProxy in the same round, or a value where absolute is set. More says that more is
	// better. 0 is no bar.
	goal     float64
	absolute bool
	more     bool
}

// The figures, in the order of the table. Bars are those of the gateway's goals.
var (
	figRequests = figure{name: "requests a second of one core, 64 connections", unit: "1/s", scale: 1, goal: 0.50, more: true}
	figCPU      = figure{name: "CPU of a request, 64 connections", unit: "µs", scale: 1e6, goal: 2.0}
	figWall     = figure{name: "requests a second by the clock, 64 connections", unit: "1/s", scale: 1, more: true}
	figRateCPU  = figure{name: "CPU of a request at 1,000 a second", unit: "µs", scale: 1e6}
	figP50      = figure{name: "time of a request at 1,000 a second, half", unit: "µs", scale: 1e6}
	figP99      = figure{name: "time of a request at 1,000 a second, 99 of 100", unit: "µs", scale: 1e6}
	figChunk    = figure{name: "CPU of an event, 200 streams of 50 a second", unit: "µs", scale: 1e6, goal: 1.30}
	figDelay50  = figure{name: "delay of an event, half", unit: "µs", scale: 1e6}
	figDelay99  = figure{name: "delay of an event, 99 of 100", unit: "µs", scale: 1e6}
	figPrompt   = figure{name: "CPU of a request with 400 KB of prompt", unit: "ms", scale: 1e3, goal: 1.8}
	figIdle     = figure{name: "memory when idle", unit: "MB", scale: 1e-6}
	figStreams  = figure{name: "memory of 1,000 open streams", unit: "MB", scale: 1e-6, goal: 28, absolute: true}
	figMany     = figure{name: "memory with all the open streams there can be, 10,000 at most", unit: "MB", scale: 1e-6, goal: 300, absolute: true}
	figOpen     = figure{name: "of them open", unit: "", scale: 1}
	figStop     = figure{name: "client gone in a stream, until 20 engines know", unit: "ms", scale: 1e3, goal: 100, absolute: true}
	figStopWait = figure{name: "client gone before a stream begins", unit: "ms", scale: 1e3, goal: 250, absolute: true}
	figStopOne  = figure{name: "client gone before a whole answer", unit: "ms", scale: 1e3, goal: 250, absolute: true}

	figures = []figure{
		figRequests, figCPU, figWall, figRateCPU, figP50, figP99, figChunk, figDelay50, figDelay99, figPrompt,
		figIdle, figStreams, figMany, figOpen, figStop, figStopWait, figStopOne,
	}
)

// results are the values of each figure by target, one a round, in rounds' order; NaN where a round has none.
type results map[string]map[string][]float64

func (r results) add(f figure, target string, value float64) {
	if r[f.name] == nil {
		r[f.name] = map[string][]float64{}
	}
	r[f.name][target] = append(r[f.name][target], value)
}

// anchor is the target that ratios go by, product the one that bars hold for. standard is the product with net/http's
// server in the place of its own.
const (
	anchor       = "haproxy"
	productName  = "heteroflow"
	standardName = "heteroflow-net/http"
)

func median(list []float64) float64 {
	list = slices.DeleteFunc(slices.Clone(list), math.IsNaN)
	if len(list) == 0 {
		return math.NaN()
	}
	slices.Sort(list)
	if n := len(list); n%2 == 0 {
		return (list[n/2-1] + list[n/2]) / 2
	}
	return list[len(list)/2]
}

// ratios are those to the anchor, round by round.
func (r results) ratios(f figure, target string) []float64 {
	var out []float64
	of, to := r[f.name][target], r[f.name][anchor]
	for i := range min(len(of), len(to)) {
		out = append(out, of[i]/to[i])
	}
	return out
}

// verdict holds the product's median against the bar.
func (r results) verdict(f figure) string {
	if f.goal == 0 {
		return ""
	}
	got, bar := median(r.ratios(f, productName)), fmt.Sprintf("%.3g × %s", f.goal, anchor)
	if f.absolute {
		got, bar = median(r[f.name][productName])*f.scale, fmt.Sprintf("%.4g %s", f.goal, f.unit)
	}
	word, ok := "at most ", got <= f.goal
	if f.more {
		word, ok = "at least ", got >= f.goal
	}
	switch {
	case math.IsNaN(got):
		return word + bar + ": not measured"
	case ok:
		return word + bar + ": held"
	}
	return word + bar + ": MISSED"
}

// write prints what was measured: medians with the least and the most, and the median of the ratios to the anchor.
func (r results) write(w io.Writer, targets []string) {
	fmt.Fprintf(w, "| | %s | bar |\n|---|%s---|\n", strings.Join(targets, " | "), strings.Repeat("---|", len(targets)))
	for _, f := range figures {
		if r[f.name] == nil {
			continue
		}
		fmt.Fprintf(w, "| %s%s |", f.name, unit(f.unit))
		for _, target := range targets {
			fmt.Fprintf(w, " %s |", r.cell(f, target))
		}
		fmt.Fprintf(w, " %s |\n", r.verdict(f))
	}
}

func unit(u string) string {
	if u == "" {
		return ""
	}
	return ", " + u
}

func (r results) cell(f figure, target string) string {
	list := slices.DeleteFunc(slices.Clone(r[f.name][target]), math.IsNaN)
	if len(list) == 0 {
		return "–"
	}
	text := number(median(list) * f.scale)
	if least, most := number(slices.Min(list)*f.scale), number(slices.Max(list)*f.scale); least != most {
		text += fmt.Sprintf(" [%s–%s]", least, most)
	}
	if ratio := median(r.ratios(f, target)); !f.absolute && target != anchor && !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
		text += fmt.Sprintf(", × %.2f", ratio)
	}
	return text
}

// number writes three digits that count.
func number(v float64) string {
	switch {
	case math.IsInf(v, 0):
		return "never"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
