package openb

import (
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

func TestPods_SortedByNameWithTheirModels(t *testing.T) {
	t.Parallel()
	models := Models{"T4": 0}
	pods, err := Pods(strings.NewReader("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nb,2000,20,1,470,T4|A10\na,1000,10,0,0,T4\n"), models)
	if err != nil {
		t.Fatal(err)
	}
	want := []Pod{{"a", potential.Shape{CPU: 1000, Memory: 10}}, {"b", potential.Shape{CPU: 2000, Memory: 20, Cards: 1, Milli: 470, Models: 3}}}
	if len(pods) != 2 || pods[0] != want[0] || pods[1] != want[1] || models["A10"] != 1 {
		t.Errorf("got %+v with models %v, want %+v", pods, models, want)
	}
}

func TestRead_BadListsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	const head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":         {"", "read the columns"},
		"other columns":   {"name,cpu\n", "columns are"},
		"a missing field": {head + "a,1,2,3\n", "wrong number of fields"},
		"no number":       {head + "a,1,2,x,4\n", `line 2: "x" is not a whole number`},
		"a negative one":  {head + "a,1,-2,1,4\n", `line 2: "-2" is not a whole number`},
		"too many cards":  {head + "a,1,2,17,1000\n", "line 2: 17 cards with 1000 thousandths"},
		"more than whole": {head + "a,1,2,1,1001\n", "line 2: 1 cards with 1001 thousandths"},
		"none of a card":  {head + "a,1,2,1,0\n", "line 2: 1 cards with 0 thousandths"},
	} {
		_, err := Pods(strings.NewReader(c.text), Models{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
	}
	if _, err := Nodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\nn,1,2,17,T4\n"), Models{}); err == nil {
		t.Error("17 cards on a node are read")
	}
}

func FuzzPods(f *testing.F) {
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nb,2000,20,1,470,T4|A10\n")
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := Pods(strings.NewReader(text), Models{})
		for i := range pods {
			p := &pods[i].Shape
			if err == nil && (p.CPU < 0 || p.Memory < 0 || p.Cards < 0 || p.Milli < 0 || p.Milli > potential.Whole) {
				t.Errorf("read %+v", pods[i])
			}
		}
	})
}

func FuzzNodes(f *testing.F) {
	f.Add("sn,cpu_milli,memory_mib,gpu,model\nn,1,2,3,T4\n")
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := Nodes(strings.NewReader(text), Models{})
		for i := range nodes {
			if err == nil && (nodes[i].CPU < 0 || nodes[i].Memory < 0) {
				t.Errorf("read %+v", nodes[i])
			}
		}
	})
}
