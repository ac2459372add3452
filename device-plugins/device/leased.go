package device

import (
	"fmt"
	"maps"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// A restart may find that a card is to have another form than its tasks have it in: a rule was written meanwhile, or the
// book of chosen forms is lost. Offered in the new form it would be given away twice. The caller holds mu, here and below.
func (p *Plugin) keepLeased() {
	leased, err := p.leasedForms()
	if err != nil {
		p.log.Warn("some leases of running tasks cannot be read", "error", err)
	}
	p.leased = leased
	for uuid, form := range leased {
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
	if still, err := p.leasedForms(); err == nil {
		maps.DeleteFunc(p.leased, func(uuid string, _ accel.Form) bool { return still[uuid] == "" })
	}
}

// leasedForms are the forms in which tasks have cards.
func (p *Plugin) leasedForms() (map[string]accel.Form, error) {
	leases, err := grant.Leases(p.leasesDir())
	forms := map[string]accel.Form{}
	for _, l := range leases {
		for uuid, form := range l.Forms {
			forms[uuid] = form
		}
	}
	return forms, err
}

// wait keeps the card in the form in which tasks have it, and from everyone else, until it can have the one it is to have.
func (o *offer) wait(leased accel.Form) {
	if leased == "" || leased == o.Form || o.Form == accel.Partition || o.Form == accel.Divided || leased == accel.Partition {
		return
	}
	o.waits = fmt.Sprintf("tasks have the card in the form %s: it is offered as %s when they have ended", leased, o.Form)
	o.Form = leased
}
