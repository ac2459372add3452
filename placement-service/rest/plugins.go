package rest

import (
	"context"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// descriptions say what each plugin is for.
var descriptions = map[string]string{
	"binpack":         "prefers cards and nodes that are used already, so that whole ones stay free",
	"spread":          "prefers cards and nodes that are free, so that a lost node costs less",
	"gpu_filter":      "leaves out cards of another brand, model, form, isolation or with too little free memory",
	"resource_filter": "leaves out nodes with too little processor or memory beside the cards",
}

// ListPlugins lists the plugins in the order in which they are asked.
func (s *server) ListPlugins(context.Context, api.ListPluginsRequestObject) (api.ListPluginsResponseObject, error) {
	out := api.ListPlugins200JSONResponse{Items: []api.Plugin{}}
	for _, p := range s.Tuning.List() {
		out.Items = append(out.Items, pluginView(p))
	}
	return out, nil
}

func pluginView(p engine.PluginSetting) api.Plugin {
	return api.Plugin{Name: p.Name, Enabled: p.Enabled, Weight: p.Weight, Description: ref(descriptions[p.Name])}
}

// UpdatePlugin switches or weighs a plugin.
func (s *server) UpdatePlugin(ctx context.Context, r api.UpdatePluginRequestObject) (api.UpdatePluginResponseObject, error) {
	p, err := s.Tuning.Update(ctx, r.Name, r.Body.Enabled, r.Body.Weight)
	if err != nil {
		return nil, err
	}
	s.log.Info("plugin changed", "plugin", p.Name, "enabled", p.Enabled, "weight", p.Weight, "by", whoOf(ctx).User)
	return api.UpdatePlugin200JSONResponse(pluginView(p)), nil
}
