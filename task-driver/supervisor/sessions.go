package supervisor

import (
	"sync"
	"time"
)

// sessionsAge is how long a look at all processes of the machine serves. A process that has begun since is seen at the next.
const sessionsAge = 500 * time.Millisecond

// Sessions tells the processes of many sessions from one look at the machine: statistics of fifty tasks a second would
// otherwise read all of /proc fifty times. The zero value is ready; it is safe for concurrent use. What must not miss a
// process asks Proc.Session.
type Sessions struct {
	mu      sync.Mutex
	at      time.Time
	members map[int][]int // pids by session
}

// Of lists the living processes of the session that p leads, as Proc.Session does.
func (s *Sessions) Of(p Proc) []Stat {
	if p.PID <= 1 || p.Boot != bootID() {
		return nil
	}
	return p.among(s.look()[p.PID])
}

// look is which process belongs to which session. The map is replaced, never changed.
func (s *Sessions) look() map[int][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members != nil && time.Since(s.at) < sessionsAge {
		return s.members
	}
	members := map[int][]int{}
	for _, pid := range allPIDs() {
		if sid := sessionOf(pid); sid > 0 { // threads of the kernel have none
			members[sid] = append(members[sid], pid)
		}
	}
	s.at, s.members = time.Now(), members
	return members
}
