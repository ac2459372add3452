package server

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// board is what is read of a board of Grafana's.
type board struct {
	UID        string
	Tags       []string
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		Datasource  struct{ UID string }
		Targets     []struct {
			RefID, Expr string
			Datasource  struct{ UID string }
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:heteroflow|gen_ai)_[a-z0-9_]*\b`)
	selector   = regexp.MustCompile(`\{[^}]*\}`)
	grouping   = regexp.MustCompile(`\bby \([^)]*\)`)
	descName   = regexp.MustCompile(`fqName: "([^"]+)"`)
)

// exported are the names of all metrics of the gateway, also of those that have no value yet.
func exported() map[string]bool {
	m := newMetrics()
	m.registry.MustRegister(&backends{})
	limit.New(nil, "x", clock.System(), hclog.NewNullLogger(), limit.NewMetrics(m.registry))
	descs := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(descs)
	close(descs)
	names := map[string]bool{}
	for d := range descs {
		name := descName.FindStringSubmatch(d.String())[1]
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			names[name+suffix] = true
		}
	}
	return names
}

// Every metric that the board asks for is one that the gateway has, under any data source.
func TestBoard_AsksForMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/grafana/gateway.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	there := exported()
	asked := map[string]bool{}
	look := func(where, query string) {
		t.Helper()
		found := metricName.FindAllString(grouping.ReplaceAllString(selector.ReplaceAllString(query, ""), ""), -1)
		if len(found) == 0 {
			t.Errorf("%s asks for nothing: %s", where, query)
		}
		for _, name := range found {
			if asked[name] = true; !there[name] {
				t.Errorf("%s asks for %s, which the gateway does not have", where, name)
			}
		}
	}
	ids := map[int]bool{}
	for _, p := range b.Panels {
		if ids[p.ID] {
			t.Errorf("%d is the id of two panels", p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s: data source %q, %d queries", p.Title, p.Datasource.UID, len(p.Targets))
		}
		for _, target := range p.Targets {
			look(p.Title, target.Expr)
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: data source %q", p.Title, target.Datasource.UID)
			}
		}
	}
	for _, v := range b.Templating.List {
		if v.Type == "query" {
			look("$"+v.Name, v.Query)
		}
	}
	if b.UID == "" || !slices.Contains(b.Tags, "heteroflow") || b.Templating.List[0].Type != "datasource" {
		t.Errorf("uid %q, tags %q", b.UID, b.Tags)
	}
	// What the gateway tells of itself is to be seen somewhere.
	for name := range there {
		if !strings.HasPrefix(name, "heteroflow_gateway_") || strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") {
			continue
		}
		if !asked[name] && !asked[name+"_bucket"] && !unseen[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// unseen are metrics that have no panel on purpose: another one shows the same.
var unseen = map[string]bool{"heteroflow_gateway_time_to_first_byte_seconds": true, "heteroflow_gateway_backend_share_ratio": true}
