package mthreads

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func ask(task string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.MThreads, "GPU-1"), TaskID: task, Vendor: accel.MThreads, Form: accel.Shared, MemoryMiB: mib, ComputePct: pct, Of: 1, Container: true,
		Card: grant.Card{UUID: "GPU-1", Model: "S4000", Index: 3, MemoryMiB: 49152},
	}
}

func none(string) {}

func TestSGPUs_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			p := makertest.NewSGPUs()
			return sharetest.Machine{Tool: p, Root: t.TempDir(), Things: p.Things, Foreign: func() { p.Call([]string{"create", "somebody", "3", "1024", "4"}) }}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: []share.Ask{ask("a/t/1", 8192, 25), ask("b/t/2", 16384, 50)},
	})
}

func TestSGPUs_WhatTheProgramIsAsked(t *testing.T) {
	t.Parallel()
	p := makertest.NewSGPUs()
	b := New(share.Host{Tool: p})
	a := ask("a", 8192, 30)
	got, err := b.Prepare(t.Context(), a, none)
	want := share.Setup{Env: map[string]string{"MTHREADS_EXAMPLE": string(a.ID)}, Nodes: []string{"/dev/mtgpu." + string(a.ID)}, Runtime: "mthreads"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{string(a.ID) + " 3 8192 5"}, p.Things()); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
}

func TestSGPUs_Refusals(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(a *share.Ask){
		"8 (4 GiB), 16 (8 GiB), 32 (16 GiB)": func(a *share.Ask) { a.MemoryMiB = 10240 },
		"has them whole":                     func(a *share.Ask) { a.Of = 2 },
		"set image":                          func(a *share.Ask) { a.Container = false },
	} {
		a := ask("a", 8192, 0)
		set(&a)
		p := makertest.NewSGPUs()
		if _, err := New(share.Host{Tool: p}).Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if made := p.Things(); len(made) > 0 {
			t.Errorf("made are %v", made)
		}
	}
	err := New(share.Host{Tool: sharetest.NewTools(nil)}).Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "publishes no command") || !strings.Contains(err.Error(), "/usr/local/libexec/heteroflow/mthreads-sgpu") {
		t.Errorf("without the program: %v", err)
	}
}

func TestRule_IsTheCataloguesOwn(t *testing.T) {
	t.Parallel()
	want, _ := catalogue.Product{}.Rounding(accel.MThreads, accel.ModeSGPU)
	if diff := cmp.Diff(want, ruleOf(0)); diff != "" {
		t.Errorf("(-catalogue +here):\n%s", diff)
	}
	if got := ruleOf(16384).Templates; len(got) != 5 || got[4].Name != strconv.Itoa(32) {
		t.Errorf("a card of 16 GiB has %v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("hf0123456789abcdef 0 1024 4\nsomebody 1 2048 16\n")
	f.Add("env A=b\nnode /dev/mtgpu.0\nruntime mthreads\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseList(text)
		for id := range all {
			if err != nil || !share.IsID(string(id)) {
				t.Errorf("%q is listed with %v", id, err)
			}
		}
		if s, err := parseSetup(text); err == nil {
			for _, node := range s.Nodes {
				if !strings.HasPrefix(node, "/dev/") {
					t.Errorf("node %q", node)
				}
			}
		}
	})
}

func TestSGPUs_RandomWalk(t *testing.T) {
	t.Parallel()
	makertest.Run(t, makertest.Walk{
		Machine: func(_ *rapid.T, root string) sharetest.Machine {
			p := makertest.NewSGPUs()
			p.Call([]string{"create", "somebody", "3", "1024", "4"})
			return sharetest.Machine{Tool: p, Root: root, Things: p.Things}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: makertest.Sizes(4, func(task string, mib uint64) share.Ask { return ask(task, mib, 25) }, 4096, 8192),
	})
}
