package admission

import (
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Read takes the accelerator asks out of a job. What was injected before is not read. The problems say what to write
// instead; with any, the reading is not to be used.
func Read(job Tree) (Reading, Problems) { return Reading{}, nil }

// Check holds the asks against what the cluster has: memory over the largest card, models that do not exist.
func Check(r Reading, cluster engine.Catalog) Problems { return nil }

// Strip takes out what Inject and Apply wrote.
func Strip(job Tree) Tree { return job }

// SpecHash names the user's job: two jobs with one hash run the same. Injections, fields that Nomad counts up and
// the difference between a default and its absence do not change it.
func SpecHash(job Tree) (string, error) { return "", nil }

// Inject writes a placed decision into a job. The decision holds a plan for each group of the reading.
func Inject(job Tree, r Reading, d engine.Decision, o Options) (Tree, Injection, error) {
	return job, Injection{}, nil
}

// Apply writes an earlier injection into a job again. Stale names the groups that ask for something else now, or for
// more allocations, or had no plan: they are left as they are and need a decision.
func Apply(job Tree, r Reading, in Injection) (out Tree, stale []string) { return job, nil }

// Merge is the injection after some groups were decided anew: those of newer, and those of older for the other
// groups that the job still has.
func Merge(r Reading, older, newer Injection) Injection { return newer }
