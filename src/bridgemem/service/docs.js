"use strict";
// The page of the service's own OpenAPI document. Where the service asks for a token, the page does too, and sends it.

const form = document.getElementById("ask");
const wrong = document.getElementById("wrong");

async function show(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("openapi.json", { headers });
  const document_ = await answer.json();
  wrong.textContent = answer.ok || (answer.status === 401 && !token) ? "" : document_.error;
  form.hidden = answer.status !== 401;
  if (!answer.ok) {
    return;
  }
  // this version of the library reads 3.0 alone; what 3.1 has more is shown as it stands
  const page = SwaggerUIBundle({
    spec: { ...document_, openapi: "3.0.3" },
    dom_id: "#routes",
    deepLinking: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      if (token) {
        request.headers.Authorization = `Bearer ${token}`;
      }
      return request;
    },
  });
  window.page = page;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("token").value.trim());
});
show("");
