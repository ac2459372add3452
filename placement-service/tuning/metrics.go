package tuning

import "github.com/prometheus/client_golang/prometheus"

var (
	pluginCalls = prometheus.NewDesc("heteroflow_plugin_calls_total",
		"Calls of a placement plugin, counted by sampling, since its settings changed.", []string{"plugin"}, nil)
	pluginSeconds = prometheus.NewDesc("heteroflow_plugin_seconds_total",
		"Time spent in a placement plugin, measured by sampling, since its settings changed.", []string{"plugin"}, nil)
)

var _ prometheus.Collector = (*Tuning)(nil)

// Describe is of a collector.
func (t *Tuning) Describe(to chan<- *prometheus.Desc) { to <- pluginCalls; to <- pluginSeconds }

// Collect tells what the plugins of the engine in force took.
func (t *Tuning) Collect(to chan<- prometheus.Metric) {
	for _, c := range t.Engine().Costs() {
		to <- prometheus.MustNewConstMetric(pluginCalls, prometheus.CounterValue, float64(c.Calls), c.Plugin)
		to <- prometheus.MustNewConstMetric(pluginSeconds, prometheus.CounterValue, float64(c.Nanos)/1e9, c.Plugin)
	}
}
