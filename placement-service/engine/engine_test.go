package engine

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestDecide_EmptyCluster(t *testing.T) {
	t.Parallel()
	d := New(Config{}).Decide(Snapshot{}, ask(1, accel.Ask{MemoryMiB: 1024}))
	if d.Placed || d.Refusal.Code != CodeNoNodes || d.Refusal.Never {
		t.Errorf("got %+v", d)
	}
}

func TestDecide_NothingAsked(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}})
	for name, r := range map[string]Request{"no groups": {JobID: "j"}, "no allocations": ask(0, accel.Ask{MemoryMiB: 1024})} {
		if d := New(Config{}).Decide(s, r); !d.Placed || len(d.Groups) != len(r.Groups) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestDecide_KeepsRunning grows a group of two by one: the running allocations stay on their card although another
// would be fuller, and the blocks stay as they are although they allow less than the cluster has.
func TestDecide_KeepsRunning(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}, {Used: 20}}})
	e := New(Config{})
	first := e.Decide(s, ask(2, accel.Ask{MemoryMiB: 20 << 10}))
	if got := where(s, first); !slices.Equal(got, []string{"n1 card1×20", "n1 card1×20"}) {
		t.Fatalf("placed at %v", got)
	}
	s.Nodes[0].Pools[0].Used = 60 // now card 0 is the better fit
	grown := ask(3, accel.Ask{MemoryMiB: 20 << 10})
	grown.Groups[0].Keep = &first.Groups[0]
	d := e.Decide(s, grown)
	if got := where(s, d); !slices.Equal(got, []string{"n1 card1×20", "n1 card1×20", "n1 card1×20"}) {
		t.Errorf("placed at %v", got)
	}
	if diff := cmp.Diff(first.Groups[0].Tasks, d.Groups[0].Tasks); diff != "" {
		t.Errorf("blocks changed\n%s", diff)
	}
	grown.Groups[0].Count = 4 // no room on card 1: decided anew, over both
	if d = e.Decide(s, grown); !d.Placed || d.Groups[0].Tasks[0].Blocks[0].Device != "vgpu" {
		t.Errorf("got %+v", d)
	}
}

func TestNew_Plugins(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{Vendor: accel.Ascend, Model: "910B3"}}})
	r := ask(1, accel.Ask{MemoryMiB: 1024, Vendors: []accel.Vendor{accel.NVIDIA}})
	if d := New(Config{}).Decide(s, r); d.Placed {
		t.Error("placed on a brand that was not asked for")
	}
	off := Config{Plugins: []PluginSetting{{Name: "gpu_filter"}, {Name: "share_tenant"}, {Name: "load"}, {Name: "resource_filter"}, {Name: "potential"}, {Name: "no such plugin", Enabled: true}}}
	if d := New(off).Decide(s, r); !d.Placed {
		t.Errorf("gpu_filter is off: %s", d.Refusal.Sentence)
	}
	r.Groups[0].Tasks[0].Ask.MemoryMiB = 79<<10 + 1025
	if d := New(off).Decide(s, r); d.Placed {
		t.Error("without filters a card is given more than it has")
	}
	want := []string{"gpu_filter", "share_tenant", "load", "resource_filter", "potential", "binpack", "spread", "nvlink", "topology", "rdma"}
	var got []string
	for _, p := range DefaultPlugins() {
		got = append(got, p.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("plugins %v, want %v", got, want)
	}
}

// notOnNode is a plugin of somebody else's.
type notOnNode string

func (notOnNode) Name() string { return "not_on_node" }
func (p notOnNode) Filter(c *Candidate) Code {
	if c.Node.Name == string(p) {
		return "not_on_node"
	}
	return ""
}

func TestWith_OwnPlugin(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}}, testNode{Name: "n2", Cards: []testCard{{}}})
	base := New(Config{})
	d := base.With(notOnNode("n1"), 0).Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))
	if got := where(s, d); !slices.Equal(got, []string{"n2 card0×1"}) {
		t.Errorf("placed at %v", got)
	}
	if got := where(s, base.Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))); !slices.Equal(got, []string{"n1 card0×1"}) {
		t.Errorf("the engine it came from changed: %v", got)
	}
	d = base.With(notOnNode("n1"), 0).With(notOnNode("n2"), 0).Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))
	if d.Refusal == nil || d.Refusal.Code != "not_on_node" || d.Refusal.Sentence == "" {
		t.Errorf("got %+v", d.Refusal)
	}
}

func TestDecide_Concurrently(t *testing.T) {
	t.Parallel()
	s := crowded(50, 8)
	e := New(Config{})
	r := ask(3, accel.Ask{MemoryMiB: 4 << 10})
	want := e.Decide(s, r)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if diff := cmp.Diff(want, e.Decide(s, r)); diff != "" {
					t.Errorf("differs\n%s", diff)
				}
			}
		})
	}
	wg.Wait()
}

// TestDecide_FindsRoom holds the answer for one allocation of one task against a plain search: it is placed exactly
// when there is a place.
func TestDecide_FindsRoom(t *testing.T) {
	t.Parallel()
	e := New(Config{})
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		r := ask(1, drawAsk(t))
		r.Tenant = drawTenant(t)
		d := e.Decide(s, r)
		if want := hasRoom(usableBy(s, r.Tenant), &r.Groups[0], *r.Groups[0].Tasks[0].Ask); d.Placed != want {
			t.Fatalf("placed %v, there is a place: %v", d.Placed, want)
		}
	})
}

// usableBy is a snapshot without what is kept from a tenant: nodes for others, and cards that others share.
func usableBy(s Snapshot, tenant string) Snapshot {
	var out Snapshot
	for _, n := range s.Nodes {
		if len(n.Tenants) > 0 && !slices.Contains(n.Tenants, tenant) {
			continue
		}
		pools := n.Pools
		n.Pools = nil
		for _, p := range pools {
			alone := p.Form == accel.Whole || p.Form == accel.Partition || slices.Contains(n.Beside, AnyTenant)
			if alone || !slices.ContainsFunc(p.Holders, func(h Holder) bool {
				return h.Tenant != tenant && !(slices.Contains(n.Beside, tenant) && slices.Contains(n.Beside, h.Tenant))
			}) {
				n.Pools = append(n.Pools, p)
			}
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

func hasRoom(s Snapshot, g *GroupAsk, a accel.Ask) bool {
	var sizes []uint64 // that a share may have
	for _, n := range s.Nodes {
		for i := range n.Pools {
			p := &n.Pools[i]
			// The sizes of pools that come into question only: they are the ones that are tried.
			usable := n.Ready && n.CPUMHz >= g.CPUMHz && a.Accepts(p.Vendor, p.Model) && strength(tier(p)) >= strength(a.QoS) && p.Form != accel.Whole
			if mib, _, _ := p.size(&a, a.MemoryMiB); usable && mib > 0 && !slices.Contains(sizes, mib) {
				sizes = append(sizes, mib)
			}
		}
	}
	for _, n := range s.Nodes {
		if !n.Ready || n.CPUMHz < g.CPUMHz {
			continue
		}
		fits := map[kind]int{}
		for i := range n.Pools {
			p := &n.Pools[i]
			like := kind{p.Vendor, p.Model, p.Form, p.UnitMiB, 0, 0}
			switch {
			case !a.Accepts(p.Vendor, p.Model):
			case a.Whole() && p.Form == accel.Whole && p.Free() >= a.Count:
				return true
			case a.Whole() && p.Form == accel.Shared && p.Free() == p.Total:
				like.total = p.Total
				fits[like]++
			case !a.Whole() && (p.Form == accel.Shared || p.Form == accel.MIG) && strength(tier(p)) >= strength(a.QoS):
				for _, like.mib = range sizes {
					if p.gives(&a, like.mib) && p.FreeMiB() >= like.mib {
						fits[like]++
					}
				}
			}
		}
		for _, n := range fits {
			if n >= a.Count {
				return true
			}
		}
	}
	return false
}

// kind is what the cards of one task have in common.
type kind struct {
	vendor accel.Vendor
	model  string
	form   accel.Form
	unit   uint64
	total  int
	mib    uint64 // as made
}

func TestMatchStars(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		"*": true, "dc*": true, "*1": true, "d*1": true, "*c*": true, "dc1": true, "dc2": false, "*2": false, "dc1*1": false, "": false,
	} {
		if got := inDatacenter("dc1", []string{pattern}); got != want {
			t.Errorf("%q: %v, want %v", pattern, got, want)
		}
	}
}

func TestCatalog_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	c := CatalogOf(snapshotOf(testNode{Name: "n1", Cards: []testCard{{Model: "A"}, {Vendor: accel.Ascend, Model: "B", GiB: 64}}}))
	for _, a := range []accel.Ask{{Count: 1, MemoryMiB: 80<<10 + 1}, {Count: 3, MemoryMiB: 1}} {
		if n := c.Impossible(a); n == nil || !strings.Contains(n.Sentence, "write at most") {
			t.Errorf("%s: %+v", a, n)
		}
	}
	if n := (Catalog{}).Impossible(accel.Ask{Count: 1, MemoryMiB: 1 << 30}); n != nil {
		t.Errorf("a cluster without cards refuses for ever: %+v", n)
	}
}
