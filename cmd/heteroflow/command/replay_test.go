package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/flight"
)

// decisions keeps one decision that places and one that waits, and a third that this build would not take.
func decisions(t *testing.T, odd bool) string {
	t.Helper()
	dir := t.TempDir()
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r, err := flight.Open(dir, 64<<20, clock.NewFake(at), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Config{})
	for i, job := range []string{"fits", "waits", "odd"} {
		if job == "odd" && !odd {
			continue
		}
		nodes := make([]engine.Node, 0, 2)
		for _, name := range []string{"a", "b"} {
			used := map[string]int{"a": 40}[name]
			nodes = append(nodes, engine.Node{
				ID: "node-" + name, Name: name, Ready: true, CPUMHz: 64000, MemoryMiB: 512 << 10, Drivers: map[string]bool{"heteroflow": true},
				Pools: []engine.Pool{{
					Group: "nvidia/vgpu/A100-" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: "A100-" + name, Model: "A100", Form: accel.Shared,
					UnitMiB: 1024, Total: 80, Used: used,
				}},
			})
		}
		q := engine.Request{JobID: job, Namespace: "default", Groups: []engine.GroupAsk{{
			Name: "g", Count: 1, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &accel.Ask{Count: 1, MemoryMiB: 20 << 10 << (2 * (i % 2))}}},
		}}}
		if job == "waits" {
			q.Groups[0].Count = 3
		}
		s := engine.Snapshot{Nodes: nodes}
		d := e.Decide(s, q)
		if job == "odd" {
			d = engine.Decision{Refusal: &engine.Refusal{Code: "memory", Sentence: "no room"}}
		}
		r.Record(flight.Entry{At: at.Add(time.Duration(i) * time.Minute), Plugins: e.Settings(), Snapshot: s, Request: q, Decision: d})
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReplay(t *testing.T) {
	t.Parallel()
	dir := decisions(t, true)
	f := newFake(t, nil)
	golden(t, "replay_same", f.call(t, nil, "replay", decisions(t, false)))
	golden(t, "replay_odd", f.call(t, nil, "replay", dir))
	golden(t, "replay_spread", f.call(t, nil, "replay", "-plugin", "potential=off", "-plugin", "spread=2", dir))
	golden(t, "replay_window", f.call(t, nil, "replay", "-from", "2026-11-30T12:00:30Z", "-to", "2026-11-30T12:01:30Z", "-json", dir))
	if r := f.call(t, nil, "replay", "-job", "fits", dir); r.code != 0 || !strings.Contains(r.out, "Decisions = 1") {
		t.Errorf("one job: %+v", r)
	}
}

func TestReplay_WhatCanBeWrong(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	dir := decisions(t, false)
	for want, args := range map[string][]string{
		"the plugins are":           {"-plugin", "nothing=1", dir},
		"a weight of 0 to 1000":     {"-plugin", "spread=much", dir},
		"write a time such as":      {"-from", "noon", dir},
		"no such file or directory": {filepath.Join(dir, "none")},
		"has no file of decisions":  {t.TempDir()},
	} {
		if r := f.call(t, nil, append([]string{"replay"}, args...)...); r.code == 0 || !strings.Contains(r.errors, want) {
			t.Errorf("%v: %+v does not say %q", args, r, want)
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], text[:len(text)-12], 0o600); err != nil {
		t.Fatal(err)
	}
	if r := f.call(t, nil, "replay", dir); r.code != 0 || !strings.Contains(r.out, "the end is missing") {
		t.Errorf("a cut file: %+v", r)
	}
}
