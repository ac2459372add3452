package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// spreadJob is a job with constraints and spreads of its own, and with those of its group and its task.
func spreadJob(ofJob, ofGroup, ofTask string) string {
	return fmt.Sprintf(`{"ID":"llm",%s"TaskGroups":[{"Name":"serve",%s"Count":2,"Tasks":[{"Name":"vllm","Driver":"heteroflow",%s"Config":{"accelerator":[{}]}}]}]}`,
		ofJob, ofGroup, ofTask)
}

func TestRead_FailureDomains(t *testing.T) {
	t.Parallel()
	r := read(t, parse(t, spreadJob(
		`"Constraints":[{"LTarget":"${meta.zone}","Operand":"distinct_property","RTarget":"3"}],"Spreads":[{"Attribute":"${node.datacenter}"}],`,
		`"Constraints":[{"LTarget":"${meta.rack}","Operand":"distinct_property"}],"Spreads":[{"Attribute":"${meta.rack}","Weight":100,"SpreadTarget":[{"Value":"r1","Percent":80}]},{"Attribute":"${meta.row}","Weight":0}],`,
		`"Constraints":[{"LTarget":"${attr.kernel.name}","Operand":"distinct_property","RTarget":"2"}],`,
	)))
	g := r.Request.Groups[0]
	wantApart := []engine.Apart{
		{Attribute: "${meta.zone}", Most: 3, OfJob: true}, {Attribute: "${meta.rack}", Most: 1}, {Attribute: "${attr.kernel.name}", Most: 2},
	}
	if diff := cmp.Diff(wantApart, g.Apart); diff != "" {
		t.Errorf("apart (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]engine.Spread{{Attribute: "${node.datacenter}", Weight: 50}, {Attribute: "${meta.rack}", Weight: 100}}, g.Spread); diff != "" {
		t.Errorf("spread (-want +got)\n%s", diff)
	}
	if len(g.Constraints) != 0 {
		t.Errorf("constraints %v, want none that looks at one node alone", g.Constraints)
	}
	if plain := read(t, parse(t, jobWith(`[{}]`))); plain.Hashes["serve"] == r.Hashes["serve"] {
		t.Error("a group with rules is the same to the ledger as one without")
	}
}

func TestRead_DistinctPropertyTakesANumber(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"0", "-1", "many", "1.5"} {
		job := spreadJob("", fmt.Sprintf(`"Constraints":[{"LTarget":"${meta.rack}","Operand":"distinct_property","RTarget":%q}],`, number), "")
		_, problems := Read(parse(t, job))
		if len(problems) != 1 || problems[0].Path != "TaskGroups[0].Constraints[0].RTarget" || !strings.Contains(problems[0].Text, "may share a value of ${meta.rack}") {
			t.Errorf("%s: problems %v", number, problems)
		}
	}
}
