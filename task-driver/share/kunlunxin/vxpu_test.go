package kunlunxin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func ask(task string, mib uint64) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.Kunlunxin, "XPU-1"), TaskID: task, Vendor: accel.Kunlunxin, Form: accel.Shared, MemoryMiB: mib, Of: 1, Container: true,
		Card: grant.Card{UUID: "XPU-1", Model: "P800-OAM", Index: 1, MemoryMiB: 98304, Nodes: []string{"/dev/xpu5"}},
	}
}

func TestVXPUs_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			return sharetest.Machine{Tool: makertest.NewXPUToolkit("5.0.21.26"), Root: t.TempDir()}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: []share.Ask{ask("a/t/1", 24576), ask("b/t/2", 49152)},
	})
}

func TestVXPUs_TheRuntimeIsToldCardAndBytes(t *testing.T) {
	t.Parallel()
	got, err := New(share.Host{Tool: makertest.NewXPUToolkit("5.0.21.26")}).Prepare(t.Context(), ask("a", 24576), func(string) {})
	want := share.Setup{Env: map[string]string{"CXPU_VISIBLE_DEVICES": "5", "CXPU_CONTAINER_MEMORY_LIMIT": "25769803776"}, Runtime: "xpu"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestVXPUs_Refusals(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(a *share.Ask){
		"1-4 (24 GiB), 1-2 (48 GiB)": func(a *share.Ask) { a.MemoryMiB = 30000 },
		"has no limit of compute":    func(a *share.Ask) { a.ComputePct = 30 },
		"ask for whole cards, or":    func(a *share.Ask) { a.Of = 2 },
		"set image":                  func(a *share.Ask) { a.Container = false },
		"shares of a R300":           func(a *share.Ask) { a.Card.Model = "R300" },
	} {
		a := ask("a", 24576)
		set(&a)
		if _, err := New(share.Host{}).Prepare(t.Context(), a, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestVXPUs_ProbeByDriver(t *testing.T) {
	t.Parallel()
	for driver, usable := range map[string]bool{"5.0.21.16": true, "5.0.21.26": true, "5.1.0.0": true, "6.0": true, "5.0.21.15": false, "5.0.3.99": false, "4.0.18.1": false} {
		if err := New(share.Host{Tool: makertest.NewXPUToolkit(driver)}).Probe(t.Context()); (err == nil) != usable {
			t.Errorf("driver %s: %v", driver, err)
		}
	}
}

func TestRules_AreTheCataloguesOwn(t *testing.T) {
	t.Parallel()
	for model, rule := range rules {
		product, _ := catalogue.ByName(accel.Kunlunxin, model)
		want, _ := product.Rounding(accel.Kunlunxin, accel.ModeVXPU)
		if diff := cmp.Diff(want, rule); diff != "" {
			t.Errorf("%s (-catalogue +here):\n%s", model, diff)
		}
	}
}
