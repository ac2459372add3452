package rest

import (
	"context"
	"strconv"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/tuning"
)

// descriptions say what each plugin is for.
var descriptions = map[string]string{
	"potential":       "prefers the place after which the node can still take most of what is usually asked for",
	"nvlink":          "prefers nodes on which the cards of a task are linked as fast as they could be",
	"rdma":            "prefers, for gangs, cards that are near a network card",
	"topology":        "prefers to take cards from pairs, rings and quads that are broken up already",
	"binpack":         "prefers cards and nodes that are used already, so that whole ones stay free",
	"spread":          "prefers cards and nodes that are free, so that a lost node costs less",
	"gpu_filter":      "leaves out cards of another brand, model, form, isolation or with too little free memory",
	"load":            "leaves out nodes and shared cards that are busier, fuller or hotter than its limits",
	"share_tenant":    "leaves out cards with shares of another tenant, but for those of the node's sharing group",
	"resource_filter": "leaves out nodes with too little processor or memory beside the cards",
}

// ListPlugins lists the plugins in the order in which they are asked.
func (s *server) ListPlugins(context.Context, api.ListPluginsRequestObject) (api.ListPluginsResponseObject, error) {
	return api.ListPlugins200JSONResponse{Items: pluginViews(s.Tuning.Current().Plugins)}, nil
}

func pluginViews(list []engine.PluginSetting) []api.Plugin {
	out := make([]api.Plugin, 0, len(list))
	for _, p := range list {
		out = append(out, pluginView(p))
	}
	return out
}

func pluginView(p engine.PluginSetting) api.Plugin {
	out := api.Plugin{Name: p.Name, Enabled: p.Enabled, Weight: p.Weight, Description: ref(descriptions[p.Name])}
	if p.Name == engine.LoadPlugin {
		l := p.Limits
		out.Limits = &api.PluginLimits{
			CardComputePct: &l.CardComputePct, CardMemoryPct: &l.CardMemoryPct, CardCelsius: &l.CardCelsius,
			NodeComputePct: &l.NodeComputePct, NodeMemoryPct: &l.NodeMemoryPct,
		}
	}
	return out
}

// limitsChange sets the limits that are given.
func limitsChange(given *api.PluginLimits) func(*engine.Limits) {
	if given == nil {
		return nil
	}
	return func(l *engine.Limits) {
		for _, one := range []struct{ to, from *float64 }{
			{&l.CardComputePct, given.CardComputePct}, {&l.CardMemoryPct, given.CardMemoryPct}, {&l.CardCelsius, given.CardCelsius},
			{&l.NodeComputePct, given.NodeComputePct}, {&l.NodeMemoryPct, given.NodeMemoryPct},
		} {
			if one.from != nil {
				*one.to = *one.from
			}
		}
	}
}

// UpdatePlugin switches or weighs a plugin.
func (s *server) UpdatePlugin(ctx context.Context, r api.UpdatePluginRequestObject) (api.UpdatePluginResponseObject, error) {
	p, err := s.Tuning.Update(ctx, whoOf(ctx).User, r.Name, r.Body.Enabled, r.Body.Weight, limitsChange(r.Body.Limits))
	if err != nil {
		return nil, err
	}
	s.log.Info("plugin changed", "plugin", p.Name, "enabled", p.Enabled, "weight", p.Weight, "by", whoOf(ctx).User)
	return api.UpdatePlugin200JSONResponse(pluginView(p)), nil
}

// ListPluginVersions lists the versions of the settings, newest first. The cursor is the number of the next one.
func (s *server) ListPluginVersions(ctx context.Context, r api.ListPluginVersionsRequestObject) (api.ListPluginVersionsResponseObject, error) {
	page := pageOf(r.Params.Limit, r.Params.Cursor)
	number := s.Tuning.Current().Number
	if page.Cursor != "" {
		from, err := strconv.Atoi(page.Cursor)
		if err != nil || from < 1 {
			return nil, store.ErrBadCursor
		}
		number = min(number, from)
	}
	out := api.ListPluginVersions200JSONResponse{Items: []api.PluginVersion{}}
	for ; number > 0; number-- {
		if len(out.Items) == page.Limit {
			out.NextCursor = ref(strconv.Itoa(number))
			break
		}
		v, err := s.Tuning.Version(ctx, number)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, versionView(v))
	}
	return out, nil
}

func versionView(v tuning.Version) api.PluginVersion {
	return api.PluginVersion{Version: v.Number, At: v.At, By: v.By, Restores: v.Of, Plugins: pluginViews(v.Plugins)}
}

// RestorePluginVersion goes back to an earlier version.
func (s *server) RestorePluginVersion(ctx context.Context, r api.RestorePluginVersionRequestObject) (api.RestorePluginVersionResponseObject, error) {
	v, err := s.Tuning.Restore(ctx, whoOf(ctx).User, r.Version)
	if err != nil {
		return nil, err
	}
	return api.RestorePluginVersion200JSONResponse(versionView(v)), nil
}
