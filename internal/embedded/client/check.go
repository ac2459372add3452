package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Words of a check's state.
const (
	checkPending = "pending"
	checkSuccess = "success"
	checkFailure = "failure"
)

// maxCheckOutput is how much of an answer a check shows.
const maxCheckOutput = 3 << 10

// checkRunner runs one check of a service in the engine's own registry.
type checkRunner struct {
	alloc  *allocRunner
	check  *api.ServiceCheck
	addr   string
	url    string
	header http.Header
	body   string
	stop   context.CancelFunc // set when it is started

	restart  *api.CheckRestart
	restarts *taskRunner // the task that a failing check starts again
	began    time.Time
	fails    int

	mu     sync.Mutex
	status api.AllocCheckStatus
}

func newCheckRunner(ar *allocRunner, reg *api.ServiceRegistration, c *api.ServiceCheck, n int, task string, in interpolator) *checkRunner {
	host, port := reg.Address, reg.Port
	if c.PortLabel != "" {
		alloc, _ := ar.desired()
		host, port = servicePort(alloc, c.PortLabel, ar.client.cfg.Node.HostIP)
	}
	sum := sha256.Sum256([]byte(reg.ID + "/" + strconv.Itoa(n)))
	r := &checkRunner{alloc: ar, check: c, addr: net.JoinHostPort(host, strconv.Itoa(port)), header: http.Header{}, body: in.text(c.Body), restart: c.CheckRestart, began: time.Now()}
	r.url = checkURL(c, r.addr, in)
	if r.restart != nil {
		r.restarts = ar.task(cmp.Or(task, c.TaskName))
	}
	for k, vs := range c.Header {
		for _, v := range vs {
			r.header.Add(k, in.text(v))
		}
	}
	mode := "healthiness"
	if c.OnUpdate == api.OnUpdateIgnore {
		mode = "readiness"
	}
	alloc, _ := ar.desired()
	r.status = api.AllocCheckStatus{
		ID: hex.EncodeToString(sum[:16]), Check: checkName(c, reg.ServiceName), Group: alloc.Name, Mode: mode, Service: reg.ServiceName, Task: task,
		Status: checkPending, Output: "nomad: waiting to run", Timestamp: time.Now().Unix(),
	}
	return r
}

func checkName(c *api.ServiceCheck, service string) string {
	return cmp.Or(c.Name, fmt.Sprintf("service: %q check", service))
}
func checkInterval(c *api.ServiceCheck) time.Duration { return cmp.Or(c.Interval, 10*time.Second) }
func checkTimeout(c *api.ServiceCheck) time.Duration  { return cmp.Or(c.Timeout, 2*time.Second) }

func checkURL(c *api.ServiceCheck, addr string, in interpolator) string {
	return cmp.Or(c.Protocol, "http") + "://" + addr + "/" + strings.TrimPrefix(in.text(c.Path), "/")
}

// startCheck runs a check until its registration or the allocation's runner ends.
func (ar *allocRunner) startCheck(r *checkRunner) {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	ar.mu.Lock()
	defer ar.mu.Unlock()
	if ar.ended {
		stop()
		return
	}
	ar.checks.Go(func() { r.run(ctx) })
}

// endChecks stops the checks of every service, waits for them, and lets no other begin.
func (ar *allocRunner) endChecks() {
	ar.mu.Lock()
	ar.ended = true
	for _, set := range ar.services {
		for _, c := range set.checks {
			c.stop()
		}
	}
	ar.mu.Unlock()
	ar.checks.Wait()
}

// run checks at once and then in the check's interval.
func (r *checkRunner) run(ctx context.Context) {
	for ctx.Err() == nil {
		code, output, err := r.once(ctx)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		before := r.status.Status
		r.status.Status, r.status.Output, r.status.StatusCode, r.status.Timestamp = checkSuccess, output, code, time.Now().Unix()
		if err != nil {
			r.status.Status, r.status.Output = checkFailure, "nomad: "+err.Error()
		}
		after := r.status.Status
		r.mu.Unlock()
		if before != after {
			r.alloc.wake()
		}
		r.judge(err != nil)
		clock.Sleep(ctx, clock.System(), checkInterval(r.check))
	}
}

// judge starts the task again after as many failures in a row as its check_restart block allows.
func (r *checkRunner) judge(failed bool) {
	if r.restart == nil || r.restart.Limit <= 0 || r.restarts == nil {
		return
	}
	if !failed || time.Since(r.began) < deref(r.restart.Grace, time.Second) {
		r.fails = 0
		return
	}
	if r.fails++; r.fails >= r.restart.Limit {
		r.fails = 0
		r.restarts.restart(restartAsk{reason: fmt.Sprintf("healthcheck: check %q unhealthy", r.status.Check), counts: true})
	}
}

func (r *checkRunner) once(ctx context.Context) (code int, output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout(r.check))
	defer cancel()
	if r.check.Type != "http" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
		if err != nil {
			return 0, "", err
		}
		return 0, "nomad: tcp ok", conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.check.Method, http.MethodGet), r.url, strings.NewReader(r.body))
	if err != nil {
		return 0, "", err
	}
	req.Header = r.header.Clone()
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: r.check.TLSSkipVerify, ServerName: r.check.TLSServerName}}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxCheckOutput))
	if err != nil {
		return resp.StatusCode, "", err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return resp.StatusCode, "", fmt.Errorf("%s: %s", resp.Status, b)
	}
	return resp.StatusCode, "nomad: http ok", nil
}

func (r *checkRunner) state() api.AllocCheckStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// checkStates lists the engine's own checks of the allocation by their ids.
func (ar *allocRunner) checkStates() api.AllocCheckStatuses {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	out := api.AllocCheckStatuses{}
	for _, set := range ar.services {
		for _, c := range set.checks {
			st := c.state()
			out[st.ID] = st
		}
	}
	return out
}

// checksPass reports whether every check that counts for an update passes, in the engine's registry and in Consul.
func (ar *allocRunner) checksPass() bool {
	if !ar.servicesReady() {
		return false
	}
	for _, st := range ar.checkStates() {
		if st.Mode == "healthiness" && st.Status != checkSuccess {
			return false
		}
	}
	ar.mu.Lock()
	var ids []string
	for _, set := range ar.services {
		ids = append(ids, set.consul...)
	}
	ar.mu.Unlock()
	return ar.client.consul.passing(ids)
}

// servicesReady reports whether everything the job wants registered is: a task counts as running a moment earlier.
func (ar *allocRunner) servicesReady() bool {
	_, tg := ar.desired()
	ar.mu.Lock()
	defer ar.mu.Unlock()
	if len(tg.Services) > 0 && ar.services[""] == nil {
		return false
	}
	for _, t := range tg.Tasks {
		role := roleOf(t)
		if len(t.Services) > 0 && ar.services[t.Name] == nil && (role == roleMain || role == rolePrestartSidecar || role == rolePoststartSidecar) {
			return false
		}
	}
	return true
}
