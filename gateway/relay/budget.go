package relay

import (
	"sync"
	"time"
)

// A budget bounds the tries of further backends, so that an outage is not made worse by them: a burst, a few each
// second, and one for every five requests.
type budget struct {
	mu   sync.Mutex
	left float64
	at   time.Time
}

const (
	retryBurst     = 100
	retryPerSecond = 10
	retryShare     = 0.2
)

// request counts a request.
func (b *budget) request(now time.Time) { b.add(now, retryShare) }

func (b *budget) add(now time.Time, more float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() {
		b.left, b.at = retryBurst, now
	}
	b.left = min(retryBurst, b.left+more+now.Sub(b.at).Seconds()*retryPerSecond)
	b.at = now
}

// take reports whether one more try is within the budget, and counts it.
func (b *budget) take(now time.Time) bool {
	b.add(now, 0)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
