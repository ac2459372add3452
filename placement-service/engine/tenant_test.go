package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// by is a request for one share of a tenant.
func by(tenant string, gib uint64) Request {
	r := ask(1, accel.Ask{MemoryMiB: gib << 10})
	r.Tenant = tenant
	return r
}

func held(tenant string, units int) testCard {
	return testCard{Used: units, Holders: []Holder{{Tenant: tenant, Units: units}}}
}

func TestTenant_NodesAreKeptForTheirs(t *testing.T) {
	t.Parallel()
	s := snapshotOf(
		testNode{Name: "n1", Tenants: []string{"blue", "red"}, Cards: []testCard{{}}},
		testNode{Name: "n2", Tenants: []string{"blue"}, Cards: []testCard{{}}},
	)
	for tenant, want := range map[string]Code{"blue": "", "red": "", "green": CodeTenant, "": CodeTenant} {
		d := New(Config{}).Decide(s, by(tenant, 8))
		if got := reason(d); got != want {
			t.Errorf("tenant %q: %q, want %q", tenant, got, want)
		}
	}
	d := New(Config{}).Decide(s, by("green", 8))
	if want := "needs 8 GiB on one card; every ready node is kept for other tenants"; d.Refusal.Sentence != want {
		t.Errorf("sentence %q, want %q", d.Refusal.Sentence, want)
	}
	if got := d.Refusal.Counts; len(got) != 1 || got[0].Code != CodeTenant || got[0].Nodes != 2 {
		t.Errorf("counts %+v", got)
	}
}

// reason is the code of a refusal, empty when the request was placed.
func reason(d Decision) Code {
	if d.Placed {
		return ""
	}
	return d.Refusal.Code
}

func TestShareTenant_ACardHasOneTenantAtATime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		beside []string
		card   testCard
		tenant string
		want   Code
	}{
		"beside a stranger":            {nil, held("blue", 8), "red", CodeShareTenant},
		"beside its own":               {nil, held("blue", 8), "blue", ""},
		"in one sharing group":         {[]string{"blue", "red"}, held("blue", 8), "red", ""},
		"one of them in the group":     {[]string{"red", "green"}, held("blue", 8), "red", CodeShareTenant},
		"everybody in the group":       {[]string{AnyTenant}, held("blue", 8), "red", ""},
		"nobody knows whose it is":     {nil, testCard{Used: 8}, "red", ""},
		"whole cards have no sharers":  {nil, testCard{Form: accel.Whole, Count: 2, Used: 1, Holders: []Holder{{"blue", 1}}}, "red", ""},
		"a MIG card is a card as well": {nil, testCard{Form: accel.MIG, Unit: 10 << 10, Used: 1, Modes: []string{"mig"}, Holders: []Holder{{"blue", 1}}}, "red", CodeShareTenant},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := snapshotOf(testNode{Name: "n1", Beside: c.beside, Cards: []testCard{c.card}})
			r := by(c.tenant, 10)
			if c.card.Form == accel.Whole {
				r.Groups[0].Tasks[0].Ask.MemoryMiB = 0
			}
			for _, d := range []Decision{New(Config{}).Decide(s, r), New(Config{}).DecideOn(NewCluster(s.Nodes...), r)} {
				if got := reason(d); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
			off := New(Config{Plugins: []PluginSetting{{Name: ShareTenant}}})
			if d := off.Decide(s, r); !d.Placed || off.KeepsTenantsApart() {
				t.Errorf("with the plugin off: %+v", d.Refusal)
			}
		})
	}
}

func TestShareTenant_SaysWhatWouldHelp(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{held("blue", 8), {Used: 76, Holders: []Holder{{"red", 76}}}}})
	d := New(Config{}).Decide(s, by("red", 10))
	if d.Placed || d.Refusal.Code != CodeMemory { // its own card comes nearer than that of a stranger
		t.Errorf("got %+v", d.Refusal)
	}
	s.Nodes[0].Pools = s.Nodes[0].Pools[:1]
	d = New(Config{}).Decide(s, by("red", 10))
	if d.Placed || !strings.Contains(d.Refusal.Sentence, "heteroflow_share_tenants") || strings.Contains(d.Refusal.Sentence, "blue") {
		t.Errorf("the sentence is to say what helps, and not who is there: %q", d.Refusal.Sentence)
	}
}

// TestShareTenant_TheIndexTellsTenantsApart: what was judged for one tenant is not taken for another's.
func TestShareTenant_TheIndexTellsTenantsApart(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{held("blue", 8)}}, testNode{Name: "n2", Cards: []testCard{held("red", 8)}})
	c, e := NewCluster(s.Nodes...), New(Config{})
	for range 2 {
		for tenant, want := range map[string]string{"blue": "n1 card0×10", "red": "n2 card0×10"} {
			if got := where(s, e.DecideOn(c, by(tenant, 10))); !slices.Equal(got, []string{want}) {
				t.Errorf("%s is at %v, want %s", tenant, got, want)
			}
		}
		if got := reason(e.DecideOn(c, by("green", 10))); got != CodeShareTenant {
			t.Errorf("green: %q", got)
		}
	}
}

func TestHold_CountsByTenant(t *testing.T) {
	t.Parallel()
	var p Pool
	p.Hold("red", 3)
	before := p.Holders
	p.Hold("blue", 2)
	p.Hold("red", 1)
	if want := []Holder{{"blue", 2}, {"red", 4}}; !slices.Equal(p.Holders, want) || before[0].Units != 3 {
		t.Errorf("holders %v, want %v; what was shared is %v", p.Holders, want, before)
	}
	p.Hold("red", -4)
	p.Hold("green", -1)
	if want := []Holder{{"blue", 2}}; !slices.Equal(p.Holders, want) {
		t.Errorf("holders %v, want %v", p.Holders, want)
	}
}
