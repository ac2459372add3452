package device

import (
	"fmt"
	"maps"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A restart may find that a card is to have another form than its tasks have it in: a rule was written meanwhile, or the
// book of chosen forms is lost. Offered in the new form it would be given away twice. The caller holds mu, here and below.
func (p *Plugin) keepLeased() {
	h := readHeld(p.set.StateDir)
	p.say(h.err)
	maps.DeleteFunc(h.forms, func(_ string, form accel.Form) bool { return form == "" })
	p.leased = h.forms
	for uuid, form := range p.leased {
		if form == accel.Whole || form == accel.Shared {
			p.forms.chosen[uuid] = form // counts where no rule does
		}
	}
}

// dropLeased forgets the cards whose tasks have ended since the start.
func (p *Plugin) dropLeased() {
	if len(p.leased) == 0 {
		return
	}
	if h := readHeld(p.set.StateDir); h.err == nil {
		maps.DeleteFunc(p.leased, func(uuid string, _ accel.Form) bool { return h.forms[uuid] == "" })
	}
}

// wait keeps the card in the form in which tasks have it, and from everyone else, until it can have the one it is to have.
func (o *offer) wait(leased accel.Form) {
	if leased == "" || leased == o.Form || o.Form == accel.Partition || o.Form == accel.Divided || leased == accel.Partition {
		return
	}
	o.waits = fmt.Sprintf("tasks have the card in the form %s: it is offered as %s when they have ended", leased, o.Form)
	o.Form = leased
}
