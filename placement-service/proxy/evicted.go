package proxy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// ofNomad are the fields of an evicted job that Nomad knows: it has the job, scaled to nothing.
var ofNomad = []string{"Version", "CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime", "Stable"}

// showEvicted has Nomad's answer about a job that was evicted say what its user wrote, and that it waits.
func (p *Proxy) showEvicted(resp *http.Response, job store.Job) error {
	body, err := readBody(resp)
	if err != nil {
		return err
	}
	var have submit.Tree
	if err := nomadapi.DecodeTree(body, &have); err != nil {
		setBody(resp, body)
		return nil // whatever it is, it is Nomad's
	}
	out, err := json.Marshal(overNomad(jobView(job), have))
	if err != nil {
		return fmt.Errorf("encode evicted job %s: %w", job.ID, err)
	}
	setBody(resp, out)
	return nil
}

// overNomad is a view of an evicted job with what Nomad knows of it.
func overNomad(view, have submit.Tree) submit.Tree {
	out := maps.Clone(have)
	maps.Copy(out, view)
	for _, name := range ofNomad {
		if v, ok := have[name]; ok {
			out[name] = v
		}
	}
	return out
}
