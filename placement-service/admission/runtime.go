package admission

import "time"

// MetaRuntime is the key of a job's meta that says for how long its allocations run at most, as 90m or 2h30m. Nobody ends
// them then: it is what the queue may count on.
const MetaRuntime = "heteroflow_runtime"

func (r *reader) runtime(job Tree) time.Duration {
	text := getString(getMap(job, "Meta"), MetaRuntime)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		r.bad("Meta."+MetaRuntime, "%q is no time: write for how long an allocation runs at most, from one second, as \"90m\" or \"2h30m\"", text)
		return 0
	}
	return d
}
