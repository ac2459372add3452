package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Plan answers a JobPlanRequest: what Nomad would do with the job as Register would send it. Nothing is reserved.
func (s *Submitter) Plan(ctx context.Context, caller Caller, env Tree) (Tree, error) {
	key, err := keyOf(env)
	if err != nil {
		return nil, err
	}
	sub, err := s.read(ctx, caller, key, env)
	if err != nil {
		return nil, err
	}
	row, err := sub.row()
	if err != nil {
		return nil, err
	}
	older, err := runningInjection(sub.prev)
	if err != nil {
		return nil, err
	}
	found := placed{job: sub.clean}
	if sub.reading.Asks() {
		if found, err = s.place(ctx, sub.placing(row, older)); err != nil {
			return nil, err
		}
	}
	job := found.job
	if job == nil {
		if refusal := refusalOf(found); refusal.Never {
			return nil, &Refused{Code: string(refusal.Code), Text: refusal.Sentence}
		}
		if job = sub.clean; len(older.Groups) > 0 {
			job, _ = admission.Apply(sub.clean, sub.reading, older)
		}
	}
	request := maps.Clone(env)
	request["Job"] = job
	delete(request, "SecretID")
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode job %s: %w", key.ID, err)
	}
	answer, err := s.Nomad.Plan(ctx, key.Namespace, key.ID, body)
	if err != nil {
		return nil, answerOf(err)
	}
	hideGrants(answer["Diff"])
	if found.job == nil {
		answer["FailedTGAllocs"] = FailedGroups(found.request, refusalOf(found))
		warnings, _ := answer["Warnings"].(string)
		answer["Warnings"] = Warnings(warnings, "The job would wait in HeteroFlow's queue: "+refusalOf(found).Sentence+suggested(found.decision))
	}
	return answer, nil
}

// suggested is the smallest change that would start a job, behind the reason why it waits.
func suggested(d *engine.Decision) string {
	if d == nil || len(d.Suggestions) == 0 {
		return ""
	}
	return "; " + d.Suggestions[0].Sentence
}

// FailedGroups says in Nomad's words why groups do not fit: the sentence stands where Nomad's clients print what a
// node lacks.
func FailedGroups(r engine.Request, refusal engine.Refusal) Tree {
	out := Tree{}
	for _, g := range r.Groups {
		if refusal.Group != "" && refusal.Group != g.Name {
			continue
		}
		out[g.Name] = Metric(refusal.Sentence, refusal.Counts, g.Count)
	}
	return out
}

// Metric is an allocation metric of Nomad with our sentence in it.
func Metric(sentence string, counts []engine.ReasonCount, want int) Tree {
	nodes := 0
	for _, c := range counts {
		nodes += c.Nodes
	}
	nodes = max(nodes, 1) // with no node at all Nomad's clients print that there is none, and not the sentence
	return Tree{
		"NodesEvaluated": nodes, "NodesFiltered": 0, "NodesInPool": nodes, "NodePool": "", "NodesAvailable": nil,
		"ClassFiltered": nil, "ConstraintFiltered": nil, "NodesExhausted": nodes, "ClassExhausted": nil,
		"DimensionExhausted": Tree{sentence: nodes}, "QuotaExhausted": nil, "ResourcesExhausted": nil,
		"Scores": nil, "AllocationTime": 0, "CoalescedFailures": max(0, want-1), "ScoreMetaData": nil,
	}
}

// Check answers for a JobValidateRequest: the problems of the asks and the job to have validated by Nomad.
func (s *Submitter) Check(env Tree) (problems admission.Problems, clean Tree, err error) {
	if _, err := keyOf(env); err != nil {
		return nil, nil, err
	}
	job := env["Job"].(Tree)
	reading, problems := admission.Read(job)
	if len(problems) == 0 && reading.Asks() && s.World.Stale(s.Clock.Now()) == "" {
		problems = admission.Check(reading, s.World.Catalog())
	}
	clean = admission.Strip(job)
	if _, err := admission.SpecHash(clean); err != nil { // Nomad breaks off on such a job, without a word
		return nil, nil, &Refused{Code: "invalid_job", Text: err.Error()}
	}
	return problems, clean, nil
}
