package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// Every refusal says what was wrong, where, and what to write instead, and is never a 5xx.
func badInput(s *suite) {
	for name, tc := range map[string]struct{ ask, config, want string }{
		"memory over the largest card": {ask: `memory = "1000GiB"`, want: "MI300X"},
		"compute below 10":             {ask: "memory = \"1GiB\"\ncompute = 5", want: "10–100"},
		"compute over 100":             {ask: "memory = \"1GiB\"\ncompute = 101", want: "10–100"},
		"an unknown brand":             {ask: `vendor = ["nvdia"]`, want: "nvidia, mthreads"},
		"an unknown model":             {ask: `model = ["H900*"]`, want: "H900"},
		"memory without a unit":        {ask: `memory = "20"`, want: "20GiB"},
		"a negative count":             {ask: `count = -1`, want: "negative"},
		"an unknown field":             {ask: `memroy = "20GiB"`, want: "memroy"},
	} {
		out, code := s.submit(probeJob{id: "bad", args: []string{"hold"}, ask: tc.ask, config: tc.config})
		if code != 1 || !strings.Contains(out, tc.want) || strings.Contains(out, "response code: 5") {
			s.t.Errorf("%s: want exit 1 and %q, got %d\n%s", name, tc.want, code, out)
		}
	}
	s.acceleratorBesideDevice()
	s.decimalMemory()
	s.hclThatDoesNotParse()
	s.bodiesThatAreNoJobs()
	s.straightToNomad()
}

func (s *suite) acceleratorBesideDevice() {
	s.t.Helper()
	job := strings.Replace(s.hcl(probeJob{id: "bad", args: []string{"hold"}, ask: `memory = "1GiB"`}),
		"memory = 32", "memory = 32\n        device \"nvidia/gpu\" {\n          count = 1\n        }", 1)
	out, errs, code := s.CLI("heteroflow", "job", "run", s.file("bad.nomad.hcl", job))
	if code != 1 || !strings.Contains(out+errs, "device") {
		s.t.Errorf("accelerator beside device: exit %d\n%s%s", code, out, errs)
	}
}

// "20GB" is accepted and converted: 20e9 bytes are 19074 MiB, rounded up.
func (s *suite) decimalMemory() {
	s.t.Helper()
	s.mustSubmit(probeJob{id: "decimal", kind: "batch", args: []string{"env"}, ask: `memory = "20GB"`})
	if env := s.env(s.awaitAllocs("decimal", "complete", 1)[0].ID); env["HETEROFLOW_MEMORY_MIB"] != "19074" {
		s.t.Errorf("20GB became %s MiB, want 19074", env["HETEROFLOW_MEMORY_MIB"])
	}
}

func (s *suite) hclThatDoesNotParse() {
	s.t.Helper()
	path := s.file("broken.nomad.hcl", "job \"x\" {\n  group \"g\" {\n    count = = 2\n  }\n}\n")
	out, errs, code := s.CLI("heteroflow", "job", "run", path)
	if code != 1 || !strings.Contains(out+errs, ":3") && !strings.Contains(out+errs, "line 3") {
		s.t.Errorf("HCL that does not parse: want line 3, got exit %d\n%s%s", code, out, errs)
	}
}

func (s *suite) bodiesThatAreNoJobs() {
	s.t.Helper()
	for name, tc := range map[string]struct{ path, body, want string }{
		"truncated":           {"/v1/jobs", `{"Job":{"ID":"x"`, ""},
		"empty":               {"/v1/jobs", ``, ""},
		"no job":              {"/v1/jobs", `{}`, "Job"},
		"a list":              {"/v1/jobs", `[]`, ""},
		"groups of text":      {"/v1/jobs", `{"Job":{"ID":"x","TaskGroups":"many"}}`, "TaskGroups"},
		"a count of text":     {"/v1/jobs", `{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Count":"two","Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"accelerator":[{"memory":"1GiB"}]}}]}]}}`, "Count"},
		"memory of a number":  {"/v1/jobs", `{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"accelerator":[{"memory":20}]}}]}]}}`, "memory"},
		"a key of wrong kind": {"/api/v1/keys", `{"kind":"root","name":"x"}`, "kind"},
		"a key of no object":  {"/api/v1/keys", `7`, ""},
		"too large":           {"/api/v1/keys", `{"name":"` + strings.Repeat("x", 40<<20) + `"}`, "bytes"},
	} {
		req, err := http.NewRequest(http.MethodPost, s.URL+tc.path, strings.NewReader(tc.body))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.AdminKey)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Errorf("%s: %v", name, err)
			continue
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode < 400 || resp.StatusCode >= 500 || !strings.Contains(string(raw), tc.want) {
			s.t.Errorf("%s: want 4xx naming %q, got %d %s %v", name, tc.want, resp.StatusCode, raw, err)
		}
	}
}

// A job that went round the placement service is refused by the driver, which says where to send it: one with an
// accelerator block, and one that brings a grant of its own making.
func (s *suite) straightToNomad() {
	s.t.Helper()
	own, err := grant.NewKey()
	if err != nil {
		s.t.Fatal(err)
	}
	forged, err := grant.Grant{ID: "own", Namespace: "default", Job: "forged", Group: "g", Task: "probe", Count: 1, QoS: accel.Gold}.Sign(own)
	if err != nil {
		s.t.Fatal(err)
	}
	for id, text := range map[string]string{
		"bypass": s.hcl(probeJob{id: "bypass", args: []string{"hold"}, ask: `memory = "1GiB"`}),
		"forged": s.hcl(probeJob{id: "forged", args: []string{"hold"}, config: fmt.Sprintf("grant = %q", forged)}),
	} {
		s.straight(text)
		s.Eventually(60*time.Second, "the driver refuses "+id+" and names the placement service", func() error {
			for _, a := range s.allocs(id) {
				if state := a.TaskStates["probe"]; state != nil && !state.StartedAt.IsZero() {
					s.t.Fatalf("%s was started", id)
				} else if state != nil {
					for _, e := range state.Events {
						if strings.Contains(e.DisplayMessage, "placement service") {
							return nil
						}
					}
				}
			}
			return fmt.Errorf("%s", s.describe(id))
		})
	}
}
