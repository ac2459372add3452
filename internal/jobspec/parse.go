package jobspec

import (
	"errors"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
)

// MaxBytes is the size of the largest job file that is read.
const MaxBytes = 10 << 20

// Options says what a job file may use beside its own text.
type Options struct {
	Vars    map[string]string // values of variables by name, as written after -var name=
	VarFile string            // HCL text with values of variables, name = value; Vars win
	// Files allows the functions that read files, relative to the working folder. A server leaves it out:
	// its files are none of a job author's business.
	Files bool
}

// Parse reads a job file. The file name is only for messages. The job is not canonicalized: what the file does not
// say is nil. An error has one line for each problem, with file, line and column.
func Parse(filename string, src []byte, vars map[string]string) (*api.Job, error) {
	return ParseWith(filename, src, Options{Vars: vars})
}

// ParseWith is Parse with everything that a command line has.
func ParseWith(filename string, src []byte, opts Options) (*api.Job, error) {
	if len(src) > MaxBytes {
		return nil, fmt.Errorf("%s: job file has %d bytes, more than the %d that are read", filename, len(src), MaxBytes)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, asError(diags)
	}
	body := file.Body.(*hclsyntax.Body) // ParseConfig returns no other
	p := &parser{src: src, root: &hcl.EvalContext{Functions: functions(opts.Files)}}
	job := p.file(body, opts)
	if p.diags.HasErrors() {
		return nil, asError(p.diags)
	}
	return job, nil
}

// parser holds what the passes over one file share: the source, the outermost scope and the problems found.
type parser struct {
	src   []byte
	root  *hcl.EvalContext
	diags hcl.Diagnostics

	lonely []*api.TaskGroup // the groups of tasks that stand directly in the job
	// Vault blocks of the job and of groups stand for each of their tasks that has none.
	jobVault   *api.Vault
	groupVault map[*api.TaskGroup]*api.Vault
}

func (p *parser) file(body *hclsyntax.Body, opts Options) *api.Job {
	for _, attr := range sortedAttrs(body) {
		p.unknown("argument", attr.Name, attr.NameRange, []string{"job", "variable", "variables", "locals"})
	}
	var jobs []*hclsyntax.Block
	for _, b := range body.Blocks {
		switch b.Type {
		case "job":
			jobs = append(jobs, b)
		case "variable", "variables", "locals":
		default:
			p.unknown("block", b.Type, b.TypeRange, []string{"job", "variable", "variables", "locals"})
		}
	}
	p.refuseHugeNumbers(body)
	if p.diags.HasErrors() {
		return nil
	}
	p.variables(body, opts)
	p.locals(body)
	if p.diags.HasErrors() {
		return nil
	}
	if len(jobs) == 0 {
		p.errorf(body.SrcRange, "no job block", `a job file has one block job "name" { … }`)
		return nil
	}
	for _, extra := range jobs[1:] {
		p.errorf(extra.TypeRange, "duplicate job block", "a file has one job; the first is at %s: write one file for each", jobs[0].TypeRange)
	}
	return p.job(jobs[0])
}

func (p *parser) job(b *hclsyntax.Block) *api.Job {
	job := &api.Job{}
	if !p.labels(b, 1) {
		return nil
	}
	p.keepRuntime(b.Body)
	name := b.Labels[0]
	job.ID = &name
	p.structBody(block{Block: b, ctx: p.root}, job)
	if job.Name == nil {
		job.Name = job.ID
		if *job.ID != name {
			job.Name = &name
		}
	}
	p.finish(job)
	return job
}

// maxExponent is the largest power of two of a number in a file. A number such as 1e99999999 is short to write, and
// would be a hundred million digits as text.
const maxExponent = 4096

func (p *parser) refuseHugeNumbers(body *hclsyntax.Body) {
	diags := hclsyntax.VisitAll(body, func(node hclsyntax.Node) hcl.Diagnostics {
		literal, ok := node.(*hclsyntax.LiteralValueExpr)
		if !ok || literal.Val.IsNull() || literal.Val.Type() != cty.Number {
			return nil
		}
		if exponent := literal.Val.AsBigFloat().MantExp(nil); exponent > maxExponent || exponent < -maxExponent {
			p.errorf(literal.SrcRange, "unsuitable number", "the number is too large or too small to be meant")
		}
		return nil
	})
	p.diags = append(p.diags, diags...)
}

// errorf notes a problem at a place in the file.
func (p *parser) errorf(at hcl.Range, summary, detail string, args ...any) {
	p.diags = append(p.diags, &hcl.Diagnostic{
		Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at,
	})
}

// maxProblems is how many problems of one file are told at once.
const maxProblems = 20

// asError makes one error of the problems, a line for each.
func asError(diags hcl.Diagnostics) error {
	var problems []error
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		if len(problems) == maxProblems {
			problems = append(problems, errors.New("there are more problems: mend these first"))
			break
		}
		problems = append(problems, d)
	}
	return errors.Join(problems...)
}
