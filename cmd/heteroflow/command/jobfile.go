package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/internal/jobspec"
)

// jobFile is how a command reads a job: a file of HCL or JSON, or standard input for "-".
type jobFile struct {
	vars  pairs
	files stringList
}

// withJobFile adds -var and -var-file.
func (c *command) withJobFile() *jobFile {
	f := &jobFile{vars: pairs{}}
	c.flags.Var(f.vars, "var", "value of a variable of the job file, as `name=value`; may be repeated")
	c.flags.Var(&f.files, "var-file", "`file` with values of variables; may be repeated")
	c.predict["var-file"] = complete.PredictFiles("*")
	c.predict[""] = complete.PredictOr(complete.PredictFiles("*.hcl"), complete.PredictFiles("*.nomad"), complete.PredictFiles("*.json"))
	return f
}

// source is the text of a job with what goes with it.
type source struct {
	job        *api.Job
	submission *api.JobSubmission
}

// read parses a job file. The server parses HCL, since it knows what it can run; a server without a parser or whose
// Nomad is away, and a file that reads other files, are served by the parser here.
func (f *jobFile) read(c *command, nomad *api.Client, conn *connection, path string) (*source, error) {
	text, name, err := slurp(path)
	if err != nil {
		return nil, err
	}
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); bytes.HasPrefix(trimmed, []byte("{")) {
		job, err := fromJSON(trimmed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return &source{job, &api.JobSubmission{Source: string(text), Format: "json"}}, nil
	}
	variables, err := f.variables(c, name, text)
	if err != nil {
		return nil, err
	}
	job, err := nomad.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: string(text), Variables: variables})
	if err != nil {
		if !needsLocalParse(err) {
			return nil, fmt.Errorf("%s: %w", name, nomadError(conn, err))
		}
		job, err = jobspec.ParseWith(name, text, jobspec.Options{VarFile: variables, Files: true})
		if err != nil {
			return nil, err
		}
	}
	return &source{job, &api.JobSubmission{Source: string(text), Format: "hcl2", VariableFlags: f.vars, Variables: variables}}, nil
}

// variables is the text of a variable file with everything that was given, -var winning.
func (f *jobFile) variables(c *command, name string, src []byte) (string, error) {
	vars := pairs{}
	for key, value := range environmentVars(c.env) {
		vars[key] = value
	}
	declared, err := jobspec.Variables(name, src)
	if err != nil {
		return "", err
	}
	for key := range vars {
		if !declared[key] {
			delete(vars, key)
		}
	}
	var files strings.Builder
	for _, path := range f.files {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read variables: %w", err)
		}
		files.Write(text)
		files.WriteString("\n")
	}
	for key, value := range f.vars {
		vars[key] = value
	}
	return jobspec.VarFile(name, src, files.String(), vars)
}

// environmentVars are the values in NOMAD_VAR_name, as with the nomad command.
func environmentVars(env Env) map[string]string {
	out := map[string]string{}
	if env.Environ == nil {
		return out
	}
	for _, entry := range env.Environ() {
		if rest, ok := strings.CutPrefix(entry, "NOMAD_VAR_"); ok {
			if name, value, ok := strings.Cut(rest, "="); ok {
				out[name] = value
			}
		}
	}
	return out
}

func slurp(path string) (text []byte, name string, err error) {
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(os.Stdin, jobspec.MaxBytes+1))
		return text, "standard input", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, path, fmt.Errorf("read job file: %w", err)
	}
	if info.Size() > jobspec.MaxBytes {
		return nil, path, fmt.Errorf("%s has %d bytes: a job file has at most %d", path, info.Size(), jobspec.MaxBytes)
	}
	text, err = os.ReadFile(path)
	return text, path, err
}

// fromJSON reads a job as the API has it, bare or inside {"Job": …}.
func fromJSON(text []byte) (*api.Job, error) {
	var wrapped struct{ Job *api.Job }
	if err := json.Unmarshal(text, &wrapped); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	job := wrapped.Job
	if job == nil {
		job = &api.Job{}
		if err := json.Unmarshal(text, job); err != nil {
			return nil, fmt.Errorf("read job: %w", err)
		}
	}
	if job.ID == nil {
		return nil, errors.New(`the JSON is no job: it has no "ID"`)
	}
	return job, nil
}

// needsLocalParse reports whether a server cannot parse, as opposed to having found the file wrong. A placement
// service whose Nomad is away cannot, and still takes jobs.
func needsLocalParse(err error) bool {
	switch nomadStatus(err) {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	var response api.UnexpectedResponseError
	if !errors.As(err, &response) {
		return false
	}
	return strings.Contains(response.Body(), "filesystem function disabled") || strings.Contains(response.Body(), "files cannot be read")
}
