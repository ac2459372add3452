package admission

import (
	"crypto/ed25519"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Tree is a job as Nomad's API sends it, decoded with json.Number. No function of this package changes the tree it
// is given: results are copies where they differ.
type Tree = map[string]any

// Reading is what a job asks for.
type Reading struct {
	Request engine.Request    // groups with an accelerator ask; Tenant is for the caller to set
	Type    string            // service, batch, system or sysbatch
	Runtime time.Duration     // for which its allocations run at most, as its meta says; 0 when it does not
	Hashes  map[string]string // of each group of the request: what its placement depends on, without its count
	Gang    *Gang             // of the groups that are members; nil when there are none
	Members int               // of the gang
	paths   map[place]string  // where each ask stands in the job
}

// place is a task by the names of its group and itself.
type place struct{ group, task string }

// Asks reports whether the job asks for accelerators at all. One that does not is passed on unchanged.
func (r Reading) Asks() bool { return len(r.Request.Groups) > 0 }

// Problem is one thing wrong with a job, and where.
type Problem struct {
	Path  string `json:"path"`            // TaskGroups[0].Tasks[0].Config.accelerator[0].memory
	Group string `json:"group,omitempty"` // name of the task group
	Task  string `json:"task,omitempty"`
	Text  string `json:"text"` // what is wrong and what to write instead
}

// Problems are all that is wrong with a job; the zero value is a job without fault.
type Problems []Problem

// Options are what Inject needs besides the decision.
type Options struct {
	Tenant string
	Key    ed25519.PrivateKey // signs the grants
}

// Injection is what was written into a job, for writing the same again. It is stored as JSON beside the job.
type Injection struct {
	Version int              `json:"v"` // 1
	Groups  []GroupInjection `json:"groups"`
	Gang    []engine.Member  `json:"gang,omitempty"` // in the order of ranks
}

// GroupInjection is what was written into one group.
type GroupInjection struct {
	Group   string `json:"group"`
	AskHash string `json:"ask_hash"` // of the asks it was decided for
	Count   int    `json:"count"`    // allocations it was decided for
	// Most is the group's own count, where it runs with fewer as members of an elastic gang may; 0 for other groups.
	Most   int              `json:"most,omitempty"`
	Plan   engine.GroupPlan `json:"plan"` // without its placements
	Grants []TaskGrant      `json:"grants"`
}

// TaskGrant is the signed grant of one task.
type TaskGrant struct {
	Task  string `json:"task"`
	Token string `json:"token"`
}

// Error is every problem, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// String says the problem with its place as a person wrote it: group "serve", task "vllm", accelerator.memory: ….
func (p Problem) String() string {
	var where []string
	if p.Group != "" {
		where = append(where, "group \""+p.Group+"\"")
	}
	if p.Task != "" {
		where = append(where, "task \""+p.Task+"\"")
	}
	if place := p.place(); place != "" {
		where = append(where, place)
	}
	if len(where) == 0 {
		return p.Text
	}
	return strings.Join(where, ", ") + ": " + p.Text
}

// place is the rest of the path after the names of group and task: what they stand for is left out.
func (p Problem) place() string {
	place := p.Path
	for _, step := range []struct{ name, list string }{{p.Group, "TaskGroups"}, {p.Task, "Tasks"}} {
		first, rest, _ := strings.Cut(place, ".")
		if step.name == "" || !strings.HasPrefix(first, step.list+"[") {
			return place
		}
		place = rest
	}
	if own, ok := strings.CutPrefix(place, "Config."); ok {
		return strings.Replace(own, "accelerator[0]", "accelerator", 1) // a block is a list of one in JSON
	}
	return place
}

// Pointer is the place as a JSON pointer into the request that brought the job.
func (p Problem) Pointer() string {
	path := strings.NewReplacer("~", "~0", "/", "~1", "[", ".", "]", "").Replace(p.Path)
	return strings.TrimSuffix("/Job/"+strings.ReplaceAll(path, ".", "/"), "/")
}
