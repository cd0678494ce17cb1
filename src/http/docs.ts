import express from 'express'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Orrery API</title>
<link rel="stylesheet" href="swagger-ui.css">
<link rel="icon" type="image/png" href="favicon-32x32.png">
</head>
<body>
<form id="token" hidden>
<p><label>API token <input name="token" type="password" autocomplete="off" required></label> <button>Open</button></p>
<p id="refused" hidden>The token was not accepted.</p>
</form>
<p id="failed" hidden></p>
<div id="api"></div>
<script src="swagger-ui-bundle.js"></script>
<script src="page.js"></script>
</body>
</html>
`

/**
 * The page holds no data. It reads the document with the token that its reader enters, and the
 * token stays in the page's memory.
 */
const script = `const form = document.getElementById('token')
const show = async (token) => {
  const headers = token === undefined ? {} : { Authorization: 'Bearer ' + token }
  const answer = await fetch('../openapi.json', { headers })
  if (answer.status === 401) {
    form.hidden = false
    document.getElementById('refused').hidden = token === undefined
    return
  }
  if (!answer.ok) throw new Error('openapi.json answered ' + answer.status)
  form.hidden = true
  SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: '#api',
    deepLinking: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      Object.assign(request.headers, headers)
      return request
    },
  })
}
const failed = (error) => {
  const place = document.getElementById('failed')
  place.textContent = String(error)
  place.hidden = false
}
form.addEventListener('submit', (event) => {
  event.preventDefault()
  show(new FormData(form).get('token')).catch(failed)
})
show().catch(failed)
`

const contentPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' " +
  "data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

/**
 * The page under `{root_url}/docs/` that renders the API's document, from files of the installed
 * package: no other host is contacted. Unknown names are left to `next`.
 */
export const docsPage = (): express.Router => {
  const folder = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'))
  const router = express.Router({ strict: true, caseSensitive: true })
  router.use((_req, res, next) => {
    res.set({
      'Content-Security-Policy': contentPolicy,
      'X-Frame-Options': 'DENY',
      'Referrer-Policy': 'no-referrer',
    })
    next()
  })
  router.get('/docs/', (_req, res) => void res.type('html').send(page))
  router.get('/docs/page.js', (_req, res) => void res.type('js').send(script))
  for (const file of ['swagger-ui.css', 'swagger-ui-bundle.js', 'favicon-32x32.png']) {
    // The folder may be below a hidden one (a cache), which sendFile refuses by default.
    router.get(`/docs/${file}`, (_req, res, next) =>
      res.sendFile(
        join(folder, file),
        { dotfiles: 'allow', maxAge: 3_600_000 },
        (error) => error !== undefined && next(error),
      ),
    )
  }
  return router
}
