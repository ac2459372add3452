package gang

// Patience says how long a gang that could start in several domains waits for a single one: no longer than jobs wait on
// average, so that an idle cluster starts everything at once, and no longer than Most. The wait counts from the gang's
// arrival: one that had to wait for its cards anyway starts as soon as it has them. All times are in one unit of the
// caller's.
type Patience struct {
	Most float64
	mean float64
}

// recent is how many starts the average looks back on.
const recent = 1000

// Started tells how long a job has waited that starts now.
func (p *Patience) Started(waited float64) { p.mean += (waited - p.mean) / recent }

// Waits reports whether a gang that has waited so long goes on waiting for a single domain.
func (p *Patience) Waits(waited float64) bool { return waited < min(p.mean, p.Most) }
