package server

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/defrag"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// clusterMetrics says what the cluster has and uses, at the moment of the scrape.
type clusterMetrics struct {
	world  *watch.World
	clock  clock.Clock
	demand func() []engine.Asked // the most frequent first; of nothing while it is not known
}

var (
	descCards = prometheus.NewDesc("heteroflow_cards", "Cards by brand, model, form and health.", []string{"vendor", "model", "form", "healthy"}, nil)
	descTotal = prometheus.NewDesc("heteroflow_card_memory_bytes", "Memory that cards are offered with.", []string{"vendor", "model", "form"}, nil)
	descUsed  = prometheus.NewDesc("heteroflow_card_memory_used_bytes", "Memory of cards that allocations hold.", []string{"vendor", "model", "form"}, nil)
	descNodes = prometheus.NewDesc("heteroflow_nodes", "Nodes by readiness.", []string{"ready"}, nil)
	descFree  = prometheus.NewDesc("heteroflow_free_cards", "Cards that nobody holds; shares count by their part of the card.", nil, nil)
	descLost  = prometheus.NewDesc("heteroflow_unusable_free_cards", "Free cards that an allocation of the observed demand cannot use, on average; none while the demand is not known.", nil, nil)
	descAge   = prometheus.NewDesc("heteroflow_nomad_silence_seconds", "Time since Nomad was last heard from.", nil, nil)
)

// Describe lists the metrics.
func (m *clusterMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCards, descTotal, descUsed, descNodes, descFree, descLost, descAge} {
		out <- d
	}
}

// Collect counts.
func (m *clusterMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	cards := map[[4]string]float64{}
	total, used := map[[3]string]float64{}, map[[3]string]float64{}
	for _, c := range m.world.Cards() {
		kind := [3]string{string(c.In.Vendor), c.In.Model, string(c.In.Form)}
		cards[[4]string{kind[0], kind[1], kind[2], strconv.FormatBool(c.Healthy)}]++
		if c.In.UnitMiB != 0 {
			total[kind] += float64(c.Units) * float64(c.In.UnitMiB) * (1 << 20)
			used[kind] += float64(c.UsedUnits) * float64(c.In.UnitMiB) * (1 << 20)
		}
	}
	for k, v := range cards {
		gauge(descCards, v, k[:]...)
	}
	for k, v := range total {
		gauge(descTotal, v, k[:]...)
		gauge(descUsed, used[k], k[:]...)
	}
	nodes := map[bool]float64{}
	snapshot := m.world.Snapshot(nil)
	for _, n := range snapshot.Nodes {
		nodes[n.Ready]++
	}
	demand := m.demand()
	report := defrag.Measure(snapshot, defrag.Typical(demand))
	gauge(descFree, report.FreeCards)
	if len(demand) > 0 {
		gauge(descLost, report.LostCards)
	}
	gauge(descNodes, nodes[true], "true")
	gauge(descNodes, nodes[false], "false")
	if at := m.world.AsOf(); !at.IsZero() {
		gauge(descAge, m.clock.Now().Sub(at).Seconds())
	}
}
