package device

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// units are the base units that a metric's name may end in, with the unit in Nomad's statistics and how many base units
// one of these is.
var units = map[string]struct {
	unit  string
	scale float64
}{
	"ratio": {"%", 0.01}, "bytes": {"MiB", 1 << 20}, "celsius": {"C", 1}, "watts": {"W", 1}, "joules": {"J", 1}, "hertz": {"MHz", 1e6},
}

func TestMetrics_NamesAndUnits(t *testing.T) {
	t.Parallel()
	if len(cardMetrics) != 25 {
		t.Errorf("%d metrics, the documents promise 25", len(cardMetrics))
	}
	seen := map[string]bool{}
	for _, m := range cardMetrics {
		if seen[m.name] || seen[m.metric] {
			t.Errorf("%s or %s is there twice", m.name, m.metric)
		}
		seen[m.name], seen[m.metric] = true, true
		if !regexp.MustCompile(`^heteroflow_card_[a-z]+(_[a-z]+)*$`).MatchString(m.metric) || !regexp.MustCompile(`^[a-z_]+$`).MatchString(m.name) {
			t.Errorf("name %s, %s", m.name, m.metric)
		}
		if m.help == "" || strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: help %q", m.metric, m.help)
		}
		parts := strings.Split(strings.TrimSuffix(m.metric, "_total"), "_")
		base, has := units[parts[len(parts)-1]]
		if has != (m.unit != "") || has && (base.unit != m.unit || base.scale != m.scale) || !has && m.scale != 1 {
			t.Errorf("%s: unit %q × %v does not fit the name", m.metric, m.unit, m.scale)
		}
	}
}

// Every metric is in the table of the documents, with the name in Nomad's statistics.
func TestMetrics_AreDocumented(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../../docs/device-plugin.md", "../../docs/zh-CN/device-plugin.md"} {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range cardMetrics {
			if !bytes.Contains(page, []byte("\n| `"+m.metric+"` | `"+m.name+"` |")) {
				t.Errorf("%s has no row of %s with %s", path, m.metric, m.name)
			}
		}
		for _, m := range dcgmMetrics {
			if !bytes.Contains(page, []byte("`"+strings.TrimPrefix(m.metric, "DCGM_FI_DEV_")+"`")) {
				t.Errorf("%s does not name %s", path, m.metric)
			}
		}
		for _, c := range conditions {
			if !bytes.Contains(page, []byte("`"+c.name+"`")) {
				t.Errorf("%s does not name the condition %s", path, c.name)
			}
		}
	}
}

func TestExposition_IsWhatPrometheusReads(t *testing.T) {
	t.Parallel()
	a, b := good("GPU-a", ""), bad(good("GPU-b", ""), "lost")
	a.Model, b.Index = "A \"40\"\\\n\xff", -1
	states := []state{
		{offer: offer{Card: a, sliceMiB: 1024}, answers: true, Sample: Sample{UtilizationPct: ptr(29.), EnergyJ: ptr(1.5), MemoryUsedMiB: ptr[uint64](1)}},
		{offer: offer{Card: b, sliceMiB: 1024}},
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(exposition(states, true, "node-1")))
	if err != nil {
		t.Fatal(err)
	}
	if v := families["heteroflow_card_utilization_ratio"].GetMetric(); len(v) != 1 || v[0].GetGauge().GetValue() != 0.29 {
		t.Errorf("utilization %v", v)
	}
	if v := families["heteroflow_card_memory_used_bytes"].GetMetric(); len(v) != 1 || v[0].GetGauge().GetValue() != 1<<20 {
		t.Errorf("memory %v", v)
	}
	if v := families["heteroflow_card_healthy"].GetMetric(); len(v) != 2 || v[0].GetGauge().GetValue() != 1 || v[1].GetGauge().GetValue() != 0 {
		t.Errorf("health %v", v)
	}
	if v := families["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].GetMetric(); len(v) != 1 || v[0].GetCounter().GetValue() != 1500 {
		t.Errorf("energy %v", v)
	}
	if v := families["DCGM_FI_DEV_FB_FREE"].GetMetric(); len(v) != 1 || v[0].GetGauge().GetValue() != 46067 {
		t.Errorf("free memory %v", v)
	}
	if families["heteroflow_card_power_watts"] != nil {
		t.Error("an unknown number was invented")
	}
	if bytes.Contains(exposition(states, false, ""), []byte("DCGM")) {
		t.Error("names of DCGM that nobody asked for")
	}
}

func FuzzLabel(f *testing.F) {
	f.Add("A100")
	f.Fuzz(func(t *testing.T, text string) {
		c := accel.Card{UUID: "GPU-a", Model: text, Form: accel.Whole}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		if _, err := parser.TextToMetricFamilies(bytes.NewReader(exposition([]state{{offer: offer{Card: c}}}, true, text))); err != nil {
			t.Error(err)
		}
	})
}
