package dockertest

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

var versionPrefix = regexp.MustCompile(`^/v[0-9.]+`)

type execution struct {
	container string
	command   []string
	tty       bool
	running   bool
	code      int
	sizes     []string
}

// ServeHTTP answers as a daemon does.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := versionPrefix.ReplaceAllString(r.URL.Path, "")
	if problem := e.tooNew(r); problem != "" {
		say(w, http.StatusBadRequest, problem)
		return
	}
	line := r.Method + " " + path
	e.mu.Lock()
	e.requests = append(e.requests, line)
	fault := e.fault(line)
	e.mu.Unlock()
	if fault != nil {
		select {
		case <-time.After(fault.Delay):
		case <-r.Context().Done():
			return
		}
		if fault.Cut {
			panic(http.ErrAbortHandler)
		}
		if fault.Status != 0 {
			say(w, fault.Status, fault.Text)
			return
		}
	}
	e.route(w, r, path)
}

// tooNew refuses what a daemon of this version would not know: a newer version of the API, and what came with one.
func (e *Engine) tooNew(r *http.Request) string {
	e.mu.Lock()
	has := e.apiVersion
	e.mu.Unlock()
	asked := strings.TrimPrefix(versionPrefix.FindString(r.URL.Path), "/v")
	if asked != "" && minor(asked) > minor(has) {
		return "client version " + asked + " is too new. Maximum supported API version is " + has
	}
	if r.URL.Query().Has("one-shot") && minor(has) < 41 {
		return "one-shot is not known to API version " + has
	}
	return ""
}

// minor is the second number of a version 1.x.
func minor(version string) int {
	var n int
	if _, err := fmt.Sscanf(version, "1.%d", &n); err != nil {
		return 0
	}
	return n
}

func (e *Engine) fault(line string) *Fault {
	for _, f := range e.faults {
		if f.re.MatchString(line) && (f.Times == 0 || f.used < f.Times) {
			f.used++
			return f
		}
	}
	return nil
}

func say(w http.ResponseWriter, status int, text string) {
	answer(w, status, map[string]string{"message": text})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		return // the client has gone
	}
}

func (e *Engine) route(w http.ResponseWriter, r *http.Request, path string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/_ping":
		e.mu.Lock()
		w.Header().Set("Api-Version", e.apiVersion)
		e.mu.Unlock()
		w.Header().Set("Ostype", "linux")
	case path == "/info":
		e.info(w)
	case path == "/images/create":
		e.pull(w, r)
	case parts[0] == "images" && r.Method == http.MethodDelete:
		e.removeImage(w, strings.TrimPrefix(strings.TrimPrefix(path, "/images/"), "sha256:"))
	case parts[0] == "images" && strings.HasSuffix(path, "/json"):
		ref := strings.TrimSuffix(strings.TrimPrefix(path, "/images/"), "/json")
		e.mu.Lock()
		known, env := e.images[ref], e.imageEnv[ref]
		e.mu.Unlock()
		if !known {
			say(w, http.StatusNotFound, "No such image: "+ref)
			return
		}
		answer(w, http.StatusOK, map[string]any{"Id": "sha256:" + ref, "Config": map[string]any{"Env": env}})
	case path == "/images/load":
		e.load(w, r)
	case path == "/containers/create":
		e.create(w, r)
	case path == "/containers/json":
		e.list(w, r)
	case parts[0] == "containers" && len(parts) >= 2:
		e.container(w, r, parts[1], strings.Join(parts[2:], "/"))
	case parts[0] == "exec" && len(parts) == 3:
		e.exec(w, r, parts[1], parts[2])
	default:
		say(w, http.StatusNotFound, "page not found")
	}
}

func (e *Engine) info(w http.ResponseWriter) {
	e.mu.Lock()
	runtimes := map[string]any{}
	for _, name := range e.runtimes {
		runtimes[name] = map[string]string{"path": name}
	}
	dirs, rootDir := e.cdiDirs, e.rootDir
	e.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{
		"ServerVersion": "99.1.0", "OSType": "linux", "Runtimes": runtimes, "DockerRootDir": rootDir, "CDISpecDirs": dirs,
	})
}

// load takes an archive whose content is the names of the images in it.
func (e *Engine) load(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	if strings.HasPrefix(string(body), "broken") {
		answer(w, http.StatusOK, map[string]any{"error": "unexpected EOF"})
		return
	}
	for _, ref := range strings.Fields(string(body)) {
		e.AddImage(ref)
	}
	answer(w, http.StatusOK, map[string]any{"stream": "Loaded image"})
}

func (e *Engine) pull(w http.ResponseWriter, r *http.Request) {
	ref := r.URL.Query().Get("fromImage")
	if tag := r.URL.Query().Get("tag"); strings.HasPrefix(tag, "sha256:") {
		ref += "@" + tag
	} else if tag != "" {
		ref += ":" + tag
	}
	for _, prefix := range []string{"docker.io/", "library/"} { // the client writes names out in full
		ref = strings.TrimPrefix(ref, prefix)
	}
	if r.URL.Query().Get("fromSrc") == "-" {
		ref = r.URL.Query().Get("repo")
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
		e.Publish(ref)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	auth, err := base64.URLEncoding.DecodeString(r.Header.Get("X-Registry-Auth"))
	if err != nil {
		auth = []byte("not base64")
	}
	e.auths = append(e.auths, string(auth))
	enc := json.NewEncoder(w)
	write := func(v any) {
		if err := enc.Encode(v); err != nil {
			return // the client has gone
		}
	}
	if !e.registry[ref] && !e.registry[strings.TrimSuffix(ref, ":latest")] {
		write(map[string]any{"errorDetail": map[string]string{"message": "manifest unknown"}, "error": "manifest unknown"})
		return
	}
	for _, current := range []int64{1 << 20, 5 << 20, 10 << 20} {
		write(map[string]any{"status": "Downloading", "id": "layer", "progressDetail": map[string]int64{"current": current, "total": 10 << 20}})
	}
	e.images[ref], e.images[strings.TrimSuffix(ref, ":latest")] = true, true
}

func (e *Engine) removeImage(w http.ResponseWriter, ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		if c.Image == ref {
			say(w, http.StatusConflict, "conflict: unable to delete "+ref+" (must be forced) - image is being used by stopped container "+c.ID)
			return
		}
	}
	if !e.images[ref] {
		say(w, http.StatusNotFound, "No such image: "+ref)
		return
	}
	delete(e.images, ref)
	answer(w, http.StatusOK, []map[string]any{{"Deleted": "sha256:" + ref}})
}

func (e *Engine) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var config struct {
		Image  string
		Cmd    []string
		Labels map[string]string
		Tty    bool

		HostConfig struct {
			LogConfig   struct{ Type string }
			NetworkMode string
		}
	}
	if err != nil || json.Unmarshal(body, &config) != nil {
		say(w, http.StatusBadRequest, "body does not parse")
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.URL.Query().Get("name")
	for _, c := range e.containers {
		if c.Name == name {
			say(w, http.StatusConflict, "Conflict. The container name \"/"+name+"\" is already in use by container \""+c.ID+"\".")
			return
		}
	}
	if !e.images[config.Image] {
		say(w, http.StatusNotFound, "No such image: "+config.Image)
		return
	}
	e.serial++
	c := &container{ID: fmt.Sprintf("%064x", e.serial), Name: name, Image: config.Image, joined: strings.HasPrefix(config.HostConfig.NetworkMode, "container:"), Labels: config.Labels, Cmd: config.Cmd, TTY: config.Tty, LogType: config.HostConfig.LogConfig.Type, Created: time.Now(), changed: make(chan struct{})}
	e.containers[c.ID] = c
	e.lastBody["create"] = body
	answer(w, http.StatusCreated, map[string]any{"Id": c.ID, "Warnings": []string{}})
}

func (e *Engine) list(w http.ResponseWriter, r *http.Request) {
	var filters map[string]map[string]bool
	if err := json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters); err != nil {
		say(w, http.StatusBadRequest, "filters do not parse")
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []map[string]any{}
	for _, c := range e.containers {
		match := true
		for label := range filters["label"] {
			name, value, _ := strings.Cut(label, "=")
			match = match && c.Labels[name] == value
		}
		if match {
			state := "exited"
			if c.Running {
				state = "running"
			}
			out = append(out, map[string]any{"Id": c.ID, "Labels": c.Labels, "State": state, "Created": c.Created.Unix()})
		}
	}
	answer(w, http.StatusOK, out)
}

func (e *Engine) container(w http.ResponseWriter, r *http.Request, id, verb string) {
	e.mu.Lock()
	c := e.containers[id]
	if c == nil {
		e.mu.Unlock()
		say(w, http.StatusNotFound, "No such container: "+id)
		return
	}
	switch {
	case r.Method == http.MethodDelete:
		e.end(c, 137, false)
		c.removed = true
		c.touch()
		delete(e.containers, id)
		w.WriteHeader(http.StatusNoContent)
	case verb == "start":
		if c.Started.IsZero() {
			e.run(c)
		}
		w.WriteHeader(http.StatusNoContent)
	case verb == "kill":
		e.kill(w, c, r.URL.Query())
	case verb == "json":
		e.inspect(w, c)
	case verb == "top":
		answer(w, http.StatusOK, map[string]any{"Titles": []string{"PID"}, "Processes": [][]string{{"4711"}, {"4712"}}})
	case verb == "stats":
		answer(w, http.StatusOK, map[string]any{
			"read":         time.Now().UTC(),
			"cpu_stats":    map[string]any{"cpu_usage": map[string]any{"total_usage": 3e9, "usage_in_usermode": 2e9, "usage_in_kernelmode": 1e9}, "online_cpus": 2},
			"memory_stats": map[string]any{"usage": 100 << 20, "max_usage": 120 << 20, "stats": map[string]any{"cache": 30 << 20, "rss": 60 << 20, "swap": 1 << 20}},
		})
	case verb == "exec":
		e.newExec(w, r, c)
	default:
		e.mu.Unlock()
		switch verb {
		case "wait":
			e.wait(w, r, c)
		case "logs":
			e.logs(w, r, c)
		default:
			say(w, http.StatusNotFound, "page not found")
		}
		return
	}
	e.mu.Unlock()
}

func (e *Engine) kill(w http.ResponseWriter, c *container, q url.Values) {
	if !c.Running {
		say(w, http.StatusConflict, "container "+c.ID+" is not running")
		return
	}
	signal := strings.TrimPrefix(q.Get("signal"), "SIG")
	stubborn := len(c.Cmd) > 0 && c.Cmd[0] == "stubborn"
	switch {
	case signal == "KILL" || signal == "9":
		e.end(c, 137, false)
	case signal == "TERM" && !stubborn:
		e.end(c, 143, false)
	default:
		c.print(1, "got "+signal+"\n")
	}
	w.WriteHeader(http.StatusNoContent)
}

func (e *Engine) inspect(w http.ResponseWriter, c *container) {
	state := map[string]any{
		"Running": c.Running, "ExitCode": c.Exit, "OOMKilled": c.OOM, "Status": "exited",
		"StartedAt": c.Started.Format(time.RFC3339Nano), "FinishedAt": c.Ended.Format(time.RFC3339Nano),
	}
	if e.health != "" {
		state["Health"] = map[string]any{"Status": e.health, "Log": []any{map[string]any{"Output": "said " + e.health}}}
	}
	if c.Running {
		state["Status"], state["Pid"] = "running", os.Getpid()
	} else if c.Started.IsZero() {
		state["Status"] = "created"
	}
	networks := map[string]any{"bridge": map[string]any{"IPAddress": "172.17.0.9", "GlobalIPv6Address": "2001:db8::9"}}
	if c.joined { // the addresses are the other container's
		networks = nil
	}
	answer(w, http.StatusOK, map[string]any{
		"Id": c.ID, "State": state, "Config": map[string]any{"Labels": c.Labels, "Image": "image", "Tty": c.TTY},
		"NetworkSettings": map[string]any{"SandboxKey": "/var/run/docker/netns/" + c.ID[:min(12, len(c.ID))], "Networks": networks},
	})
}

// until blocks until done holds, the client has gone or the daemon goes down.
func (e *Engine) until(ctx context.Context, c *container, done func() bool) bool {
	for {
		e.mu.Lock()
		ok, changed := done(), c.changed
		e.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (e *Engine) wait(w http.ResponseWriter, r *http.Request, c *container) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	if e.until(r.Context(), c, func() bool { return !c.Running && !c.Started.IsZero() || c.removed }) {
		if err := json.NewEncoder(w).Encode(map[string]int{"StatusCode": c.Exit}); err != nil {
			return // the client has gone
		}
	}
}

func (e *Engine) logs(w http.ResponseWriter, r *http.Request, c *container) {
	var since time.Time
	if text := r.URL.Query().Get("since"); text != "" {
		var sec, nano int64
		if _, err := fmt.Sscanf(text, "%d.%d", &sec, &nano); err == nil {
			since = time.Unix(sec, nano)
		}
	}
	if c.LogType == "none" || c.LogType == "syslog" {
		say(w, http.StatusNotImplemented, "configured logging driver does not support reading")
		return
	}
	w.WriteHeader(http.StatusOK)
	flusher, _ := w.(http.Flusher)
	flusher.Flush()
	e.mu.Lock()
	lose := e.loseTail
	e.loseTail = false
	e.mu.Unlock()
	if lose {
		e.until(r.Context(), c, func() bool { return !c.Running && !c.Started.IsZero() || c.removed })
		return
	}
	sent := 0
	for {
		more := e.until(r.Context(), c, func() bool { return len(c.log) > sent || !c.Running && !c.Started.IsZero() || c.removed })
		if !more {
			return
		}
		e.mu.Lock()
		lines := append([]logLine(nil), c.log[sent:]...)
		ended := !c.Running && !c.Started.IsZero() || c.removed
		e.mu.Unlock()
		for _, l := range lines {
			sent++
			if l.at.Before(since) {
				continue
			}
			text := l.at.Format(time.RFC3339Nano) + " " + l.text
			out := frame(l.stream, text)
			if c.TTY {
				out = []byte(text)
			}
			if _, err := w.Write(out); err != nil {
				return
			}
		}
		flusher.Flush()
		if ended {
			return
		}
	}
}

func frame(stream byte, text string) []byte {
	head := make([]byte, 8, 8+len(text))
	head[0] = stream
	binary.BigEndian.PutUint32(head[4:], uint32(len(text)))
	return append(head, text...)
}

func (e *Engine) newExec(w http.ResponseWriter, r *http.Request, c *container) {
	var spec struct {
		Cmd []string
		Tty bool
	}
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
		say(w, http.StatusBadRequest, "body does not parse")
		return
	}
	if !c.Running {
		say(w, http.StatusConflict, "container is not running")
		return
	}
	e.serial++
	id := fmt.Sprintf("exec%d", e.serial)
	e.execs[id] = &execution{container: c.ID, command: spec.Cmd, tty: spec.Tty, running: true}
	answer(w, http.StatusCreated, map[string]string{"Id": id})
}

// exec runs "echo WORDS", "warn WORDS", "exit N" and "cat" (its input until the end of it).
func (e *Engine) exec(w http.ResponseWriter, r *http.Request, id, verb string) {
	e.mu.Lock()
	x := e.execs[id]
	e.mu.Unlock()
	if x == nil {
		say(w, http.StatusNotFound, "No such exec instance")
		return
	}
	switch verb {
	case "json":
		e.mu.Lock()
		defer e.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"ID": id, "Running": x.running, "ExitCode": x.code})
	case "resize":
		e.mu.Lock()
		defer e.mu.Unlock()
		x.sizes = append(x.sizes, r.URL.Query().Get("w")+"x"+r.URL.Query().Get("h"))
	case "start":
		e.startExec(w, r, x)
	}
}

func (e *Engine) startExec(w http.ResponseWriter, r *http.Request, x *execution) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer conn.Close() //nolint:errcheck // the session is over
	write := func(stream byte, text string) {
		out := frame(stream, text)
		if x.tty {
			out = []byte(text)
		}
		if _, err := conn.Write(out); err != nil {
			return // the client has gone
		}
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"); err != nil {
		return
	}
	code := 0
	rest := strings.Join(x.command[1:], " ")
	switch x.command[0] {
	case "echo":
		write(1, rest+"\n")
	case "warn":
		write(2, rest+"\n")
	case "exit":
		if _, err := fmt.Sscan(rest, &code); err != nil {
			code = 1
		}
	case "cat":
		body, err := io.ReadAll(buffered)
		if err != nil {
			code = 1
		}
		write(1, string(body))
	case "hang":
		if _, err := io.Copy(io.Discard, buffered); err != nil {
			code = 1
		}
	default:
		write(2, "no such command\n")
		code = 127
	}
	e.mu.Lock()
	x.running, x.code = false, code
	e.mu.Unlock()
}

// Sizes lists the terminal sizes ("widthxheight") that exec sessions were given.
func (e *Engine) Sizes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	for _, x := range e.execs {
		all = append(all, x.sizes...)
	}
	return all
}
