// The REST API.

class ApiError extends Error {
  constructor(status, told) {
    super(told.what);
    Object.assign(this, { status, what: told.what, where: told.where, fix: told.fix });
  }
}

async function answered(response) {
  if (response.ok) return response;
  let told = { what: `the server answered ${response.status}` };
  try {
    told = await response.json();
  } catch {
    // A proxy in between answers in its own words.
  }
  throw new ApiError(response.status, told);
}

export async function get(path, signal) {
  return (await answered(await fetch(`/api/v1${path}`, { signal }))).json();
}

export async function post(path, body) {
  const response = await answered(await fetch(`/api/v1${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }));
  return response.status === 204 ? null : response.json();
}

export async function upload(kind, file) {
  const response = await answered(await fetch(`/api/v1/uploads?kind=${kind}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  })).catch((error) => {
    // Of several files, which one: the server knows no names.
    throw error.where === "upload" ? Object.assign(error, { where: file.name }) : error;
  });
  return response.json();
}

let failures = 0;

// The script of the plots, for pages that have some. A browser remembers an import that failed, so
// the next attempt has another address.
export async function charts() {
  try {
    return await (failures ? import(`../web/charts.js?${failures}`) : import("../web/charts.js"));
  } catch (error) {
    failures += 1;
    throw error;
  }
}

export function query(values) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") words.append(name, value);
  }
  return words.toString();
}
