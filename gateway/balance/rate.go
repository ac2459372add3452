package balance

import "time"

const (
	rateMemory  = 0.995 // of the samples so far, at each new one
	rateSamples = 16    // before a rate is believed
	rateSpread  = 1.5   // between the fastest and the slowest, below which all count as equal
)

// rate is how fast a backend works off prompts, measured by what was ahead of a first byte and how long that took: the
// line through the origin that fits best, in which long prompts, whose time is least disturbed, weigh most.
type rate struct {
	tokens2, tokensSeconds float64
	samples                int
}

func (r *rate) add(tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	x := float64(tokens)
	r.tokens2 = rateMemory*r.tokens2 + x*x
	r.tokensSeconds = rateMemory*r.tokensSeconds + x*took.Seconds()
	r.samples++
}

// perSecond is in tokens; it is false while too little was seen.
func (r *rate) perSecond() (float64, bool) {
	if r.samples < rateSamples {
		return 0, false
	}
	return r.tokens2 / r.tokensSeconds, true
}

// setSpeeds compares the measured rates. Where they differ, a backend's speed is its rate over the mean; one not
// measured yet counts as the mean. Where they do not, all speeds are 1, and noise moves nobody.
func (p *Pool) setSpeeds() {
	var sum, low, high float64
	known := 0
	for _, m := range p.members {
		r, ok := m.rate.perSecond()
		if !ok {
			continue
		}
		if known == 0 {
			low, high = r, r
		}
		sum, low, high, known = sum+r, min(low, r), max(high, r), known+1
	}
	for _, m := range p.members {
		m.speed = 1
		if r, ok := m.rate.perSecond(); ok && high > rateSpread*low {
			m.speed = r * float64(known) / sum
		}
	}
}
