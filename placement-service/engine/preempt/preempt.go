package preempt

import (
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Mode says what may be evicted.
type Mode string

// Modes, from the strictest.
const (
	Off       Mode = "off"        // nothing
	QueueOnly Mode = "queue_only" // what was given room and does not run yet
	Running   Mode = "running"    // that and what runs
)

// Policy is the operator's rules. All times are in seconds.
type Policy struct {
	Mode       Mode
	MinRuntime int64 // what runs for less stays
	Guard      int64 // a job that was evicted stays for so long after that
	// Budget is how many cards one tenant may lose to evictions within the window that Question.Lost is about; 0 is no
	// limit. Shares count by their part of the card.
	Budget float64
	// Excess is how many cards may be evicted for each card that is asked for, a part of one counting as one; 0 is no
	// limit.
	Excess float64
}

// Allocation is one allocation that holds room.
type Allocation struct {
	ID         string
	Job        string // names the job in the whole cluster
	Tenant     string
	Priority   int
	NodeID     string
	Claims     []engine.Claim
	CPUMHz     int
	MemoryMiB  int
	DiskMiB    int
	StartedAt  int64 // 0 when it does not run yet
	EvictedAt  int64 // when its job was evicted last; 0 when it never was
	MinRuntime int64 // seconds that its job asks for; the longer one of this and the policy's counts
	// Whole has the allocations of the job evicted together or not at all: a gang.
	Whole bool
	// Pinned allocations stay: those that Nomad places alone, or that cannot be started again.
	Pinned bool
	Gold   bool // its job asks for gold, which nobody takes away
}

// Question is what is asked. Find changes nothing of it.
type Question struct {
	Engine   *engine.Engine
	Snapshot engine.Snapshot
	Request  engine.Request // with the priority of the job that asks
	Running  []Allocation
	Policy   Policy
	Now      int64              // seconds, on the clock of StartedAt and EvictedAt
	Lost     map[string]float64 // cards that each tenant lost to evictions within the window of the budget
}

// Plan is the answer: victims with which the request fits, or a refusal.
type Plan struct {
	Victims []string // ids of allocations, sorted; empty when refused, or when the request fits anyway
	Jobs    []string // their jobs, sorted
	Foreign int      // how many of them are of other tenants than the request, whom their names are no business of
	Cards   float64  // that the victims hold; a share is its part of a card
	// MilliCards is thousandths of cards that each of the jobs loses.
	MilliCards map[string]int64
	Asked      float64 // cards that the request takes
	Decision   engine.Decision
	Kept       []Kept   // why other allocations stay, most first
	Refusal    *Refusal // nil when Victims suffices

	own []string // jobs of the request's tenant, sorted
}

// Kept is how many allocations stay for one reason.
type Kept struct {
	Why         Why
	Allocations int
}

// Why is the rule by which an allocation stays.
type Why string

// Rules, in the order in which they are checked.
const (
	WhyPriority   Why = "priority"    // not lower than that of the job that asks
	WhyGold       Why = "gold"        // its job asks for gold
	WhyPinned     Why = "pinned"      // cannot be started again elsewhere
	WhyMode       Why = "mode"        // it runs, and only what does not may be evicted
	WhyMinRuntime Why = "min_runtime" // has not run for long enough
	WhyGuard      Why = "guard"       // its job was evicted a short time ago
	WhyBudget     Why = "budget"      // its tenant has lost as much as it may
	WhyGang       Why = "gang"        // another allocation of its gang stays
)

// Refusal is why no eviction helps.
type Refusal struct {
	Code     engine.Code
	Sentence string // for people
}

// Codes of a refusal.
const (
	CodeOff       engine.Code = "preemption_off"
	CodeNoVictims engine.Code = "preemption_no_victims" // nothing may be evicted
	CodeNoHelp    engine.Code = "preemption_no_help"    // not even without all that may be
	CodeExcess    engine.Code = "preemption_excess"     // the smallest set is out of proportion
)

// Find answers the question.
func Find(q Question) Plan {
	if q.Policy.Mode != QueueOnly && q.Policy.Mode != Running {
		return Plan{Refusal: &Refusal{Code: CodeOff, Sentence: "nothing is evicted for other jobs here: preemption is off"}}
	}
	if q.Request.Loose == "" && q.Engine.Fits(q.Snapshot, q.Request) {
		return Plan{Decision: q.Engine.Decide(q.Snapshot, q.Request)}
	}
	why := q.judge()
	for {
		s := newSearch(&q, why)
		plan := s.plan()
		plan.Kept = count(why)
		over := s.overBudget(plan)
		if len(over) == 0 {
			s.explain(&plan)
			return plan
		}
		for _, a := range over { // and again without them: another tenant's may do
			why[a] = WhyBudget
		}
	}
}
