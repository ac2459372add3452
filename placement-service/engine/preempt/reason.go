package preempt

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// explain fills in the words of a plan, and refuses one that is out of proportion.
func (s *search) explain(p *Plan) {
	if p.Refusal == nil && s.q.Policy.Excess > 0 && p.Cards > math.Ceil(p.Asked)*s.q.Policy.Excess+1e-9 {
		p.Refusal = &Refusal{Code: CodeExcess, Sentence: fmt.Sprintf(
			"the smallest eviction that makes room takes %s from %s for the %s asked for, more than %s for each: ask for more of it, or raise max_excess",
			cardsOf(p.Cards), p.Whom(), cardsOf(p.Asked), number(s.q.Policy.Excess))}
		p.Victims, p.Jobs, p.own, p.Foreign = nil, nil, nil, 0
	}
	if p.Refusal == nil || p.Refusal.Sentence != "" {
		return
	}
	stay := s.stay(p.Kept)
	if p.Refusal.Code == CodeNoVictims {
		p.Refusal.Sentence = "nothing may be evicted for it: " + stay
		return
	}
	var members int
	var milli int64
	for _, u := range s.units {
		members += len(u.members)
		milli += u.milli
	}
	sentence := "it is placed by Nomad alone"
	if p.Decision.Refusal != nil {
		sentence = p.Decision.Refusal.Sentence
	}
	p.Refusal.Sentence = fmt.Sprintf("evicting all that may be, %s with %s, would not make room: %s",
		plural(members, "allocation"), cardsOf(float64(milli)/1000), sentence)
	if stay != "" {
		p.Refusal.Sentence += "; " + stay
	}
}

// Sentence says what a plan would do.
func (p *Plan) Sentence() string { return "would start by " + p.Doing() }

// Doing says what it evicts.
func (p *Plan) Doing() string {
	return fmt.Sprintf("evicting %s of %s, %s for the %s asked for",
		plural(len(p.Victims), "allocation"), p.Whom(), cardsOf(p.Cards), cardsOf(p.Asked))
}

// stay says how many allocations stay, and why.
func (s *search) stay(kept []Kept) string {
	if len(kept) == 0 {
		return "no allocation of another job runs"
	}
	all, parts := 0, make([]string, len(kept))
	for i, k := range kept {
		all += k.Allocations
		parts[i] = fmt.Sprintf("%d %s", k.Allocations, s.words(k.Why))
	}
	verb := "stay"
	if all == 1 {
		verb = "stays"
	}
	return fmt.Sprintf("%s %s: %s", plural(all, "allocation"), verb, strings.Join(parts, ", "))
}

func (s *search) words(w Why) string {
	policy := &s.q.Policy
	switch w {
	case WhyPriority:
		return fmt.Sprintf("of priority %d or more", s.q.Request.Priority)
	case WhyGold:
		return "under qos gold"
	case WhyPinned:
		return "that cannot be started elsewhere"
	case WhyMode:
		return "running, where only what does not run yet may be evicted"
	case WhyMinRuntime:
		return "not past the least running time"
	case WhyGuard:
		return fmt.Sprintf("of jobs that were evicted less than %d s ago", policy.Guard)
	case WhyBudget:
		return fmt.Sprintf("of tenants that have lost %s cards or would lose more", number(policy.Budget))
	case WhyGang:
		return "in gangs of which something else stays"
	}
	return string(w)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cardsOf says a number of cards, with up to two digits behind the point.
func cardsOf(cards float64) string {
	if text := number(cards); text != "1" {
		return text + " cards"
	}
	return "1 card"
}

func number(v float64) string {
	text := fmt.Sprintf("%.2f", v)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// Whom names the jobs of the request's own tenant, the first three of them, and counts the others.
func (p *Plan) Whom() string {
	const most = 3
	words := slices.Clone(p.own[:min(len(p.own), most)])
	if more := len(p.own) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	if p.Foreign == 1 {
		words = append(words, "1 job of another tenant")
	} else if p.Foreign > 1 {
		words = append(words, fmt.Sprintf("%d jobs of other tenants", p.Foreign))
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}
