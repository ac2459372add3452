package server

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// clusterMetrics says what the cluster has and uses, at the moment of the scrape.
type clusterMetrics struct {
	world *watch.World
	clock clock.Clock
}

var (
	descCards = prometheus.NewDesc("heteroflow_cards", "Cards by brand, model, form and health.", []string{"vendor", "model", "form", "healthy"}, nil)
	descTotal = prometheus.NewDesc("heteroflow_card_memory_bytes", "Memory that cards are offered with.", []string{"vendor", "model", "form"}, nil)
	descUsed  = prometheus.NewDesc("heteroflow_card_memory_used_bytes", "Memory of cards that allocations hold.", []string{"vendor", "model", "form"}, nil)
	descNodes = prometheus.NewDesc("heteroflow_nodes", "Nodes by readiness.", []string{"ready"}, nil)
	descAge   = prometheus.NewDesc("heteroflow_nomad_silence_seconds", "Time since Nomad was last heard from.", nil, nil)
)

// Describe lists the metrics.
func (m *clusterMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCards, descTotal, descUsed, descNodes, descAge} {
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
	for _, n := range m.world.Snapshot(nil).Nodes {
		nodes[n.Ready]++
	}
	gauge(descNodes, nodes[true], "true")
	gauge(descNodes, nodes[false], "false")
	if at := m.world.AsOf(); !at.IsZero() {
		gauge(descAge, m.clock.Now().Sub(at).Seconds())
	}
}
